"""Programs whose threads a library has replaced by tasks: a store refuses them at once, where it would hang."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

STANDS_IN = """
import sys, threading
class LockType: pass
LockType.__module__ = {module!r}
threading.Lock = LockType
"""
PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all({arguments})",
    "eventlet": "import eventlet; eventlet.monkey_patch({arguments})",
}
# With the first argument "read", only reads.
PROGRAM = """
import sys, penstock
if sys.argv[1] == "read":
    with penstock.open(sys.argv[2], read_only=True) as store:
        print(len(store.read("t", 0).messages))
else:
    with penstock.open(sys.argv[2]) as store:
        store.put("t", b"m", queue=0)
        print("put")
"""


def run(start: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + PROGRAM, *words],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("module", ["gevent.thread", "eventlet.lock"])
def test_where_locks_are_replaced_nothing_is_opened(tmp_path: Path, module: str) -> None:
    """`penstock.open` never returned after `monkey.patch_all()`."""
    done = run(STANDS_IN.format(module=module), "write", str(tmp_path / "s"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("penstock.errors.ConfigError:")
    assert module.partition(".")[0] in last
    assert "(thread=False)" in last
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
@pytest.mark.parametrize("library", PATCHES)
def test_the_real_library_is_refused_and_its_other_patches_are_not(
    tmp_path: Path, library: str
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    all_of_it = PATCHES[library].format(arguments="")
    done = run(all_of_it, "write", str(tmp_path / "s"))
    assert "ConfigError: a store cannot be opened for writing" in done.stderr
    assert run(PATCHES[library].format(arguments="thread=False"), "write", str(tmp_path / "s")).stdout == "put\n"  # fmt: skip
    assert run(all_of_it, "read", str(tmp_path / "s")).stdout == "1\n"
