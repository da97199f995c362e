"""Runs the named tests of a plant in a process of their own, with the fault or without."""

import json
import os
import subprocess
import sys

from tests.plants.planting import HERE, ROOT, VARIABLE, Plant

_FAILED = 1
# A fault must be found by what a test says of it, not by an edit that is no valid code.
_BROKEN = ("NameError", "SyntaxError", "UnboundLocalError", "IndentationError")


def run(plant: Plant, *, planted: bool = True) -> tuple[int, str]:
    """Run a plant's tests; returns pytest's exit code, and what it printed."""
    path = os.pathsep.join([str(HERE / "site"), os.environ.get("PYTHONPATH", "")])
    environ = {
        **os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        VARIABLE: json.dumps(plant) if planted else "",
    }  # fmt: skip
    environ.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short",
               "-p", "no:cacheprovider", *plant.tests]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def missed(plant: Plant) -> str:
    """Plant a fault and run its tests; returns "" if each failed, else what they printed."""
    code, out = run(plant)
    summary = out.strip().rpartition("\n")[2]
    is_found = code == _FAILED and " failed" in summary
    is_found &= "passed" not in summary and "error" not in summary
    return "" if is_found and not any(word in out for word in _BROKEN) else out
