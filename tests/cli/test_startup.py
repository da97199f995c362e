"""What a command imports, which is what its start costs: `penstock --help` once took half a second of processor time.

Times would depend on the machine, so the modules are pinned that must not be there.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

SCRIPT = """
import json, sys
from penstock_tools.cli import main
sys.argv = ["penstock", *sys.argv[1:]]
try:
    code = main()
except SystemExit as error:
    code = error.code
sys.stdout.flush()
sys.stderr.write("\\n" + json.dumps([code, sorted(sys.modules)]))
"""
# All of these take tens of milliseconds, or bring in what does.
HEAVY = {
    "numpy", "pyarrow", "pyspark", "rich", "attrs", "attr", "importlib.metadata", "email", "multiprocessing",
    "concurrent.futures.process", "subprocess", "asyncio", "ssl", "penstock.contracts", "penstock.config",
    "penstock.store", "penstock.log", "penstock_index.consume_queue", "penstock_spark.archive",
}  # fmt: skip


def imported(*arguments: str) -> set[str]:
    """Return the modules that a process of the command has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code in (0, None), done.stderr
    return set(modules)


# What comes with any store that is opened.
OF_A_STORE = {
    "attrs", "attr", "penstock.contracts", "penstock.config", "penstock.store", "penstock.log",
    "penstock_index.consume_queue", "penstock_spark.archive",
}  # fmt: skip


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_the_list_of_commands_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    found = imported(*arguments)
    heavy = HEAVY - {"importlib.metadata", "email"} if arguments == ("--version",) else HEAVY
    assert not found & heavy
    verbs = {name for name in found if name.startswith("penstock_tools.cli.verbs.")}
    assert not verbs


@pytest.mark.parametrize("verb", ["stat", "topics", "groups"])
def test_an_overview_of_a_store_imports_no_numpy(verb: str, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data", environ={}) as store:
        store.put_many(
            penstock.Message("t", b"x", queue=n % 3, tag="a", keys=[str(n)]) for n in range(1000)
        )
        store.commit_offset("g", "t", 0, offset=1)
    found = imported(verb, str(tmp_path / "data"), "--json")
    assert not found & (HEAVY - OF_A_STORE)
    found = imported(verb, str(tmp_path / "data"))
    assert found & HEAVY - OF_A_STORE <= {"rich"}


def test_a_store_that_is_written_has_imported_what_its_threads_need(tmp_path: Path) -> None:
    """An import in a background thread fails where no descriptor is left."""
    assert {"numpy", "crc32c"} <= imported("init", str(tmp_path / "data"))
