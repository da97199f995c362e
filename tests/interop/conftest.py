"""The real RocketMQ stores for these tests, built once."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.interop.brokers import BROKERS, Broker, build_broker
from tests.interop.javastore import VERSIONS, JavaStore, JavaStores, build, missing_tools

CACHE = Path(__file__).parents[2] / ".cache" / "interop"


@pytest.fixture(scope="session")
def classpaths() -> dict[str, str]:
    """Return each version's class path; skips, or fails in CI, where Java or Maven are missing."""
    missing = missing_tools()
    if missing:
        reason = f"the interop tests need {', '.join(missing)}"
        if os.environ.get("PENSTOCK_REQUIRE_INTEROP") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return {version: build(version, CACHE) for version in VERSIONS}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version of RocketMQ in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def javas(classpaths: dict[str, str]) -> Iterator[JavaStores]:
    """The JVMs that tests take turns with."""
    shared = JavaStores(classpaths)
    yield shared
    shared.end()


@pytest.fixture
def java(version: str, javas: JavaStores) -> Iterator[JavaStore]:
    """A JVM ready to open a store."""
    with javas.take(version) as store:
        yield store


@pytest.fixture
def java2(version: str, javas: JavaStores) -> Iterator[JavaStore]:
    """Another JVM, for what comes after the first was killed or closed."""
    with javas.take(version) as store:
        yield store


@pytest.fixture(scope="session")
def broker_classpaths() -> dict[str, str]:
    """Return the class path of each version's broker, built once; guarded as `classpaths` is."""
    missing = missing_tools()
    if missing:
        reason = f"the broker tests need {', '.join(missing)}"
        if os.environ.get("PENSTOCK_REQUIRE_INTEROP") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return {version: build_broker(version, CACHE) for version in BROKERS}


@pytest.fixture
def make_broker(broker_classpaths: dict[str, str]) -> Iterator[Callable[[str], Broker]]:
    """Return a function that gives a JVM for a broker of a version; all are killed at the end."""
    with ExitStack() as running:

        def make(version: str) -> Broker:
            return running.enter_context(Broker(broker_classpaths[version], version))

        yield make
