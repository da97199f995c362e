"""A copy of the source tree in which mutants are made and their tests run, so that the checkout is never changed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import hatch_build
from tests.mutants import kernel_build
from tests.mutants.areas import ROOT, is_kernel

_LEFT_OUT = (".git", ".venv", "build", "*.so", "*.part", "__pycache__", ".*_cache", ".hypothesis",
             ".cache", "demo-data", "docs", "dist")  # fmt: skip
# Later than the original by more than what a file system rounds to: else Python would take the compiled original.
_LATER_NS = 10_000_000_000
TIMED_OUT = "timed out"


class Scratch:
    """A copy in a folder of its own; the kernel is built, without optimization. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Copy the tree into `folder`, which is made."""
        self.folder, self.root = folder, folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        self._temporary = folder / "tmp"
        self.object = hatch_build.recipe_of(self.root).target
        self._kept = folder / "kernel.kept"

    def build(self, *, with_probes: bool = False) -> None:
        """Build the kernel of the unchanged sources, and keep the object for `restore`."""
        if with_probes:
            kernel_build.build_with_probes(self.root)
        else:
            told = kernel_build.build(self.root)
            assert not told, told
        shutil.copy2(self.object, self._kept)

    def change(self, path: str, source: bytes) -> str:
        """Write another text for one file, and build the kernel if it is a part of it; returns why that fails, or nothing."""
        target = self.root / path
        before = target.stat()
        target.write_bytes(source)
        later = before.st_mtime_ns + _LATER_NS
        os.utime(target, ns=(later, later))
        return kernel_build.build(self.root) if is_kernel(path) else ""

    def restore(self, path: str) -> None:
        """Undo `change`."""
        shutil.copy2(ROOT / path, self.root / path)
        if is_kernel(path):
            # Not copied over: a process that was killed late may have it mapped yet.
            self.object.unlink()
            shutil.copy2(self._kept, self.object)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of tests in this copy."""
        with (self.root / "pyproject.toml").open("rb") as file:
            packages = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        roots = dict.fromkeys(str((self.root / package).parent) for package in packages)
        path = [*more.pop("first_on_path", "").split(), *roots, str(self.root)]
        kept = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        return {
            **kept, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(self._temporary),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
            **more,
        }  # fmt: skip

    def pytest(
        self, arguments: list[str], timeout_s: float, **environ: str
    ) -> tuple[int | str, str]:
        """Run pytest in the copy; returns its exit code or `TIMED_OUT`, and what it printed.

        All processes of its session are killed at the end, and its temporary files deleted.
        """
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        output = self.folder / "output.txt"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.choosing", *arguments]  # fmt: skip
        code: int | str
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environment(**environ), stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = TIMED_OUT
            finally:
                _kill_group(process.pid)
                process.wait()
        return code, output.read_text(errors="replace")


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
