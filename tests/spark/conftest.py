"""One Spark session for all Spark tests."""

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session; skips without pyspark, and fails where CI requires it."""
    try:
        import pyspark  # noqa: F401, PLC0415 - an extra
    except ImportError:
        if os.environ.get("PENSTOCK_REQUIRE_SPARK") == "1":
            pytest.fail("pyspark is required here, and not installed")
        pytest.skip("pyspark is not installed")
    from penstock_spark import local_session  # noqa: PLC0415 - after the check

    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS", "SPARK_HOME"):
        os.environ.pop(name, None)
    quick = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    session = local_session("penstock-tests", "2", quick)
    yield session
    session.stop()
