"""What a command imports, which is what its start costs: `penstock --help` once took half a second of processor time.

Times would depend on the machine, so the modules are pinned that must not be there.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from penstock.cli import main
sys.argv = ["penstock", *sys.argv[1:]]
try:
    code = main()
except SystemExit as error:
    code = error.code
sys.stderr.write("\\n" + json.dumps([code, sorted(sys.modules)]))
"""
# All of these take tens of milliseconds, or bring in what does.
HEAVY = {
    "numpy", "pyarrow", "pyspark", "rich", "attrs", "attr", "importlib.metadata", "email", "multiprocessing",
    "concurrent.futures", "subprocess", "asyncio", "penstock.contracts", "penstock.config", "penstock.store",
    "penstock.log", "penstock_index.consume_queue", "penstock_spark.export",
}  # fmt: skip


def imported(*arguments: str) -> set[str]:
    """Return the modules that a process of the command has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code in (0, None), done.stderr
    return set(modules)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_the_list_of_commands_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    found = imported(*arguments)
    heavy = HEAVY - {"importlib.metadata", "email"} if arguments == ("--version",) else HEAVY
    assert not found & heavy
    verbs = {name for name in found if name.startswith("penstock.cli.verbs.")}
    assert not verbs
