"""The manual page says what the commands say, is kept current, and is shown by the programs that show one."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.docs import man_page
from tests.lanes import at_night

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "penstock.1"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == man_page.man_page(), "run `make man`"


def test_exit_codes_are_those_of_the_docs() -> None:
    table = dict(
        re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    )
    assert {int(code) for code in table} == set(man_page.EXIT_CODES)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["man", at_night("mandoc")])
def test_it_can_be_shown(program: str) -> None:
    if shutil.which(program) is None:
        if program == "mandoc" and os.environ.get("PENSTOCK_REQUIRE_SHELLS"):
            pytest.fail("mandoc is missing")
        pytest.skip(f"{program} is not installed")
    command = {
        "man": ["man", "--warnings", "-l", str(PAGE)],
        "mandoc": ["mandoc", "-W", "error", "-T", "utf8", str(PAGE)],
    }[program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout[-500:]
    shown = re.sub(".\b", "", done.stdout)
    for text in ("penstock stat", "--space", "EXIT STATUS", "$ penstock verify data"):
        assert text in shown, text
