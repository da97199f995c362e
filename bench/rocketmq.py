"""The real RocketMQ store in a JVM of its own: built once into `.cache/bench`, driven like any other engine."""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "bench"
_LOGBACK = '<configuration><root level="OFF"/></configuration>'
# As for a broker, with a heap that a measured run never fills.
_OPTIONS = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=4g")
# Set only so that the store never considers the disk full: other programs' files do not belong to the measurement.
_RATIOS = ("WarningLevel", "CleanForcibly")


class NoJavaError(Exception):
    """Why there is no RocketMQ store to measure."""


def missing() -> str:
    """Return why it cannot be measured, or None."""
    tools = [name for name in ("mvn", "javac", "java") if shutil.which(name) is None]
    return f"needs {' and '.join(tools)}" if tools else ""


def build(cache: Path = CACHE) -> str:
    """Return the class path of driver and store."""
    if missing():
        raise NoJavaError(missing())
    listed, classes = cache / "classpath.txt", cache / "classes"
    cache.mkdir(parents=True, exist_ok=True)
    # A list of missing jars is useless: the local repository may have been emptied.
    if not listed.exists() or not all(map(os.path.exists, listed.read_text().split(os.pathsep))):
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
        output = _run("mvn", "-q", "-B", "-f", str(HERE / "java" / "pom.xml"), goal,
                    f"-Dmdep.outputFile={listed}")  # fmt: skip
        if output:
            raise NoJavaError(f"Maven could not fetch the store: {output[:200]}")
    sources = sorted((HERE / "java" / "src").rglob("*.java"))
    built = classes / "penstock" / "bench" / "Bench.class"
    newest = max(source.stat().st_mtime for source in sources)
    if not built.exists() or built.stat().st_mtime < newest:
        shutil.rmtree(classes, ignore_errors=True)
        output = _run("javac", "-nowarn", "-cp", listed.read_text().strip(), "-d", str(classes),
                    *map(str, sources))  # fmt: skip
        if output:
            raise RuntimeError(f"the driver does not compile: {output}")
    return f"{classes}{os.pathsep}{listed.read_text().strip()}"


def _run(*command: str) -> str:
    """Run a command; return its output if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired as error:
        raise NoJavaError(f"{command[0]} took too long") from error
    return (done.stdout + done.stderr).strip() or "no reason given" if done.returncode else ""


def command(home: Path) -> list[str]:
    """Return the command that starts the JVM; `home` is the folder for its files."""
    logback = home / "logback.xml"
    logback.write_text(_LOGBACK)
    opened = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    return [
        "java", *_OPTIONS, f"-Duser.home={home}", f"-Drmq.logback.configurationFile={logback}",
        *(f"-Drocketmq.broker.diskSpace{name}Ratio=0.99" for name in _RATIOS),
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened),
        "-cp", build(), "penstock.bench.Bench",
    ]  # fmt: skip
