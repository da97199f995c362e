"""The real RocketMQ stores for these tests, built once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.javastore import VERSIONS, JavaStore, build, missing_tools

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


@pytest.fixture
def java(version: str, classpaths: dict[str, str]) -> Iterator[JavaStore]:
    """A JVM ready to open a store."""
    with JavaStore(classpaths[version]) as store:
        yield store


@pytest.fixture
def java2(version: str, classpaths: dict[str, str]) -> Iterator[JavaStore]:
    """Another JVM, for what comes after the first was killed or closed."""
    with JavaStore(classpaths[version]) as store:
        yield store
