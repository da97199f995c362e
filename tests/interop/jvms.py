"""Fixtures that give the JVMs of the real RocketMQ: each is started once a process and used by one test after the other."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.interop.brokers import Broker, build_broker
from tests.interop.javastore import VERSIONS, JavaStore, JvmPool, build, missing_tools
from tests.lanes import need

MakeBroker = Callable[[str], Broker]
JavaStores = JvmPool[JavaStore]


def need_java() -> None:
    """Skip, or fail in CI, where Java or Maven are missing."""
    missing = missing_tools()
    need(f"the interop tests need {', '.join(missing)}" if missing else "", "INTEROP")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version of RocketMQ's store in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def javas() -> Iterator[JavaStores]:
    """The JVMs of stores that tests take turns with."""
    need_java()
    shared = JvmPool(lambda version: JavaStore(build(version)))
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
def brokers() -> Iterator[JvmPool[Broker]]:
    """The JVMs of brokers that tests take turns with."""
    need_java()
    shared = JvmPool(lambda version: Broker(build_broker(version), version))
    yield shared
    shared.end()


@pytest.fixture
def make_broker(brokers: JvmPool[Broker]) -> Iterator[MakeBroker]:
    """Return a function that gives a JVM for a broker of a version; what still runs is stopped at the end."""
    with ExitStack() as taken:
        yield lambda version: taken.enter_context(brokers.take(version))
