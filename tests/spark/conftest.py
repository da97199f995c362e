"""One Spark session for all Spark tests of a process; `tests/conftest.py` sends them all to one worker."""

import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.lanes import need

# No C2 and no threads of a parallel collector: a test's JVM is gone before they pay.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": JVM,
}
# What another Spark on the machine may have set.
FOREIGN = ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS", "SPARK_HOME")


def require(module: str) -> None:
    """Skip where a module is not installed; fail where CI requires Spark."""
    need("" if importlib.util.find_spec(module) else f"{module} is not installed", "SPARK")


def needed(module: str) -> Any:
    """Return a module; skip without it, and fail where CI requires Spark and what goes with it."""
    if os.environ.get("PENSTOCK_REQUIRE_SPARK") == "1":
        return importlib.import_module(module)
    return pytest.importorskip(module)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session of two cores; skips without pyspark."""
    require("pyspark")
    from tests.spark.home import make_home  # noqa: PLC0415 - after the check

    from penstock_spark import local_session  # noqa: PLC0415 - after the check

    with pytest.MonkeyPatch.context() as patch:
        for name in FOREIGN:
            patch.delenv(name, raising=False)
        patch.setenv("SPARK_HOME", str(make_home(tmp_path_factory.mktemp("spark-home"))))
        patch.setenv("SPARK_LAUNCHER_OPTS", JVM)
        warehouse = str(tmp_path_factory.mktemp("warehouse"))
        session = local_session("tests", "2", {**QUICK, "spark.sql.warehouse.dir": warehouse})
        yield session
        session.stop()
