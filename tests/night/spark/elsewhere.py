"""Spark outside this process: a Python without Penstock, the wheel to ship, a cluster on loopback.

Nothing is left running: each process is in a group of its own, which is killed on the way out, and dies with
the test process if that is killed itself.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import venv
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock_spark.java import ensure_java

ROOT = Path(__file__).parents[3]
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
START_SECONDS = 120
JOB_SECONDS = 300
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def make_bare_python(home: Path) -> Path:
    """Make an environment that has what Penstock needs, and not Penstock; returns its python.

    Its packages are links to those installed here, all but Penstock's own and the file that puts a working
    copy on the path.
    """
    venv.create(home, symlinks=True, with_pip=False)
    site = next((home / "lib").glob("python*/site-packages"))
    for source in (Path(entry) for entry in sys.path if Path(entry).name == "site-packages"):
        for package in source.iterdir():
            if "penstock" not in package.name and not (site / package.name).exists():
                (site / package.name).symlink_to(package)
    return home / "bin" / "python"


def build_wheel(folder: Path) -> Path:
    """Build the wheel, named as a zip: Spark unpacks no archive whose name ends otherwise."""
    run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "--wheel-dir", folder, ROOT], dict(os.environ),
    )  # fmt: skip
    (wheel,) = folder.glob("penstock-*.whl")
    return wheel.rename(folder / "penstock.zip")


def install(wheel: Path, python: Path) -> None:
    """Put what the wheel holds where an installer puts it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(next((python.parents[1] / "lib").glob("python*/site-packages")))


def clean_environment(home: Path, driver: Path, python: Path) -> dict[str, str]:
    """Return an environment in which only these Pythons are known, and no working copy is on their path."""
    ensure_java()
    kept = {
        key: value
        for key, value in os.environ.items()
        if "SPARK" not in key and key not in ("PYTHONPATH", "JAVA_TOOL_OPTIONS")
    }
    return kept | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": JVM,
        "SPARK_DAEMON_JAVA_OPTS": JVM,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(driver),
    }


def settings(local: Path) -> list[str]:
    """Return what every session here is given: quiet, on loopback, quick to start."""
    found = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM,
        "spark.executor.extraJavaOptions": JVM,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(local / "warehouse"),
        "spark.local.dir": str(local),
    }
    return [text for key, value in found.items() for text in ("--conf", f"{key}={value}")]


def run(command: list[Any], environ: dict[str, str], cwd: Path = ROOT) -> str:
    """Run a command to its end and return what it printed; on failure, show all it said."""
    with subprocess.Popen(
        command, env=environ, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of the system
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=JOB_SECONDS)
        finally:
            _kill_group(process)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}:\n{output}\n{errors}")
    return output


def last_json(output: str) -> dict[str, Any]:
    """Return the JSON of the last line printed."""
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


class Cluster:
    """A standalone master and its workers, one core each, on ports that the system picks."""

    def __init__(self, folder: Path, environ: dict[str, str], workers: int = 2) -> None:
        self._folder = folder
        self._environ = environ
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            master = self._start("master", "master.Master")
            self.url = self._said(master, r"Starting Spark master at (spark://\S+)", "master")
            names = [f"worker{number}" for number in range(self._count)]
            workers = {
                name: self._start(
                    name, "worker.Worker", "--cores", "1", "--memory", "512m",
                    "--work-dir", str(self._folder / name), self.url,
                )
                for name in names
            }  # fmt: skip
            for name, worker in workers.items():
                self._said(worker, r"(Successfully registered) with master", name)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self, name: str, what: str, *more: str) -> "subprocess.Popen[bytes]":
        command = [
            f"{self._environ['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{what}",
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *more,
        ]  # fmt: skip
        # An empty folder: as Spark comes, it logs that it is up, and where.
        environ = self._environ | {"SPARK_CONF_DIR": str(self._folder / "conf")}
        (self._folder / "conf").mkdir(exist_ok=True)
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                command, env=environ, cwd=self._folder, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of the system
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _said(self, process: "subprocess.Popen[bytes]", pattern: str, name: str) -> str:
        """Wait for a line in a process's log, and return its group."""
        pause = threading.Event()
        for _ in range(START_SECONDS * 10):
            text = self._log(name).read_text()
            if found := re.search(pattern, text):
                return found[1]
            if process.poll() is not None:
                break
            pause.wait(0.1)
        raise RuntimeError(f"{name} did not start:\n{self._log(name).read_text()[-4000:]}")

    def _stop(self) -> None:
        for process in reversed(self._processes):
            _kill_group(process)
            process.wait()


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill_group(process: "subprocess.Popen[Any]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def processes_of(python: Path) -> list[str]:
    """Return the commands of all processes of an interpreter that are still running."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(python) in command:
                found.append(command)
    return found
