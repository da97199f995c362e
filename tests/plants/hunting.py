"""Runs the named tests of a plant in a process of their own, with the fault or without."""

import gc
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import pytest
from tests.plants.planting import HERE, ROOT, VARIABLE, Plant, plant_from_environment

_FAILED = 1
_LIMIT_S = 120
# A fault must be found by what a test says of it, not by an edit that is no valid code.
_BROKEN = ("NameError", "SyntaxError", "UnboundLocalError", "IndentationError")
# The processes are forked from one that has imported what is not ours: that is half of the time of most.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["pytest", "hypothesis", "numpy", "attrs", "pluggy", "click", "crc32c", "isal.isal_zlib", "importlib.metadata", "tarfile"]
)  # fmt: skip


def _run_tests(planted: str, tests: tuple[str, ...], out: str) -> None:
    file = os.open(out, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(ROOT)
    os.environ |= {
        # For processes that the tests start.
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), os.environ.get("PYTHONPATH", "")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HYPOTHESIS_PROFILE": "plants",
        VARIABLE: planted,
    }
    os.environ.pop("PYTEST_ADDOPTS", None)
    sys.path.insert(0, str(ROOT))
    plant_from_environment()
    # What was imported before stays: pytest collects garbage several times.
    gc.freeze()
    sys.exit(pytest.main(["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", *tests]))


def run(plant: Plant, *, planted: bool = True) -> tuple[int, str]:
    """Run a plant's tests; returns pytest's exit code, and what it printed."""
    with tempfile.NamedTemporaryFile("r") as out:
        text = json.dumps(plant) if planted else ""
        process = _PROCESSES.Process(target=_run_tests, args=(text, plant.tests, out.name))
        process.start()
        process.join(_LIMIT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode or 0, Path(out.name).read_text()


def missed(plant: Plant) -> str:
    """Plant a fault and run its tests; returns "" if each failed, else what they printed."""
    code, out = run(plant)
    summary = out.strip().rpartition("\n")[2]
    is_found = code == _FAILED and " failed" in summary
    is_found &= "passed" not in summary and "error" not in summary
    return "" if is_found and not any(word in out for word in _BROKEN) else out
