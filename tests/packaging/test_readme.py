"""The README as a newcomer meets it: install by its lines into an empty environment, then paste its blocks in order.

The environment is a fresh one. What the install line asks for is linked into it from this one, and nothing else (see
`extras`). So no package is downloaded, and a block that needs more than the install line brings fails. pip runs the line itself,
without an index: it refuses if a package is missing that the wheel's metadata names for those extras.
The blocks from "Spark" on run in `tests/spark/test_docs.py`, in an environment that has Spark.
"""

import re
import sys
from pathlib import Path

import pytest
from sybil import Example
from tests.docs.blocks import Blocks, check_install, parse
from tests.packaging.checkouts import ROOT, make_built_checkout, make_wheel, run
from tests.packaging.extras import link_needed

README = ROOT / "README.md"
TEXT = README.read_text()
SPARK = TEXT.index("\n## Spark\n")
WHEEL_LINES = re.search(r"```console\n\$ (pip wheel [^\n]*)\n\$ (pip install [^\n]*)\n```", TEXT)
EXTRAS = re.compile(r"\[([\w,]+)\]")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout with a wheel in `dist`, as the README's line makes it."""
    folder = make_built_checkout(tmp_path_factory.mktemp("readme") / "checkout")
    make_wheel(folder, folder / "dist")
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has pip, and what a bare `pip install` of the wheel adds."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    run(sys.executable, "-m", "venv", folder, folder=ROOT)
    return folder / "bin" / "python"


def install(line: str, checkout: Path, python: Path) -> None:
    """Run an install line of the README in a checkout."""
    found = EXTRAS.search(line)
    link_needed(python.parents[1], found[1].split(",") if found else ())
    pip = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": "",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    run("bash", "-c", line, folder=checkout, given=pip)


def test_the_readme_names_the_same_extras_for_a_checkout_and_for_a_wheel() -> None:
    assert WHEEL_LINES
    first = re.search(r"```console\n\$ (pip install '\.[^\n]*)\n```", TEXT)
    assert first
    assert EXTRAS.findall(first[1]) == EXTRAS.findall(WHEEL_LINES[2])
    assert TEXT.index(first[0]) < TEXT.index("```python"), (
        "an install line stands before the first block"
    )
    check_install(first[1])


def test_the_first_block_works_after_a_bare_install_and_all_after_the_line_with_extras(
    checkout: Path, bare: Path, tmp_path: Path
) -> None:
    assert WHEEL_LINES
    first = TEXT.index("```python\n")
    after = TEXT.index("```text\n")

    def is_first(example: Example) -> bool:
        return first <= example.start <= after

    def is_later(example: Example) -> bool:
        return first <= example.start < SPARK

    install(EXTRAS.sub("", WHEEL_LINES[2]), checkout, bare)
    alone = Blocks(tmp_path / "alone", python=bare)
    alone.folder.mkdir()
    alone.run(README, is_first)
    assert alone.ran == ["python", "text"]
    installed = run(
        bare, "-m", "pip", "list", "--format=freeze", folder=tmp_path, given={"PYTHONPATH": ""}
    )
    assert not re.search("(?m)^(pyarrow|click|rich|pyspark)=", installed), installed

    install(WHEEL_LINES[2], checkout, bare)
    whole = Blocks(tmp_path / "whole", python=bare)
    whole.folder.mkdir()
    whole.run(README, is_later)
    assert whole.ran == ["python", "text", "console"]
    assert not whole.skipped


def test_the_line_that_makes_a_wheel_is_a_line_of_pip() -> None:
    """It is run with the tools of this environment by the fixture: without an index, pip could not fetch them."""
    assert WHEEL_LINES
    assert WHEEL_LINES[1] == "pip wheel --quiet --no-deps --wheel-dir dist ."
    assert len(list(parse(README, Blocks(ROOT)))) > 5
