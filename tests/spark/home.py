"""A SPARK_HOME whose Python is read from folders, so that workers start three times as fast.

An installed pyspark gives its workers `python/lib/pyspark.zip` to import from. Zipped modules have no
bytecode beside them, so each new worker compiles what it imports, 0.35 s at a time, and a query has several.
Here folders of the same names hold links to the installed packages. For tests only.
"""

from pathlib import Path

import py4j
import pyspark

LOGGING = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def make_home(folder: Path) -> Path:
    """Lay out a SPARK_HOME of links in a folder; returns the folder."""
    installed = Path(pyspark.__file__).parent
    for name in ("bin", "jars", "sbin"):
        (folder / name).symlink_to(installed / name)
    library = folder / "python" / "lib"
    library.mkdir(parents=True)
    for archive in (installed / "python" / "lib").glob("*.zip"):
        package = Path(py4j.__file__).parent if archive.name.startswith("py4j") else installed
        (library / archive.name).mkdir()
        (library / archive.name / package.name).symlink_to(package)
    (folder / "conf").mkdir()
    (folder / "conf" / "log4j2.properties").write_text(LOGGING)
    return folder
