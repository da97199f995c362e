"""Every Python and console block of the documentation runs, or says why not."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from sybil.example import SybilFailure
from tests.docs.blocks import DOCS, PAGES, ROOT, SPARK, Blocks, split_commands

# Every block that no test runs from its page, by page: the reason that the page gives, and how many blocks have it.
LEFT_OUT: dict[str, dict[str, int]] = {
    "comparison.md": {
        "needs sqlite3 and duckdb": 1,
    },
    "durability.md": {
        "needs a JDK, Maven and strace": 1,
    },
    "matrix.md": {
        "takes ten minutes; tests/cli/test_matrix_page.py runs the command": 1,
    },
    "performance.md": {
        "takes ten minutes and more": 1,
    },
    "pipelines.md": {
        "tests/spark/test_pipelines.py runs it and compares what it prints": 3,
    },
    "plugins.md": {
        "installs the plugin; tests/unit/plugins/test_registry.py runs it": 1,
        "needs the plugin installed; tests/contract runs the suites": 1,
    },
    "spark-cluster.md": {
        "needs a cluster; tests/night/spark/test_elsewhere.py runs these ways": 5,
    },
    "spark-jobs.md": {
        "tests/spark/test_jobs.py runs every job and both forms of its command": 7,
        "a signature: the reference of the API is made from the code": 6,
    },
    "spark.md": {
        "tests/spark/test_jobs.py runs these commands": 1,
    },
}
_REASON = re.compile(r'<!-- skip: next "([^"]+)" -->\n\n?```')
_LANGUAGES = {"python", "console", "toml", "text", "", "ini", "sql", "json"}


def name_of(path: Path) -> str:
    return str(path.relative_to(DOCS))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", [p for p in PAGES if "```" in p.read_text()], ids=name_of)
def test_the_blocks_of_a_page_do_what_it_shows(path: Path, tmp_path: Path) -> None:
    Blocks(tmp_path).run(path)


def test_what_does_not_run_is_listed_here_with_its_reason() -> None:
    found = {
        name_of(path): Counter(_REASON.findall(path.read_text()))
        for path in sorted([*PAGES, *SPARK])
    }
    assert {name: reasons for name, reasons in found.items() if reasons} == LEFT_OUT
    for path in [*PAGES, *SPARK]:
        assert path.read_text().count("<!-- skip:") == found[name_of(path)].total(), (
            f"{path}: a marker without a block"
        )


@pytest.mark.parametrize("path", [*PAGES, *SPARK, ROOT / "README.md"], ids=str)
def test_every_block_names_a_language_that_is_known_here(path: Path) -> None:
    fences = re.findall(r"^[ ]*```(.*)$", path.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert all(end == "" for end in fences[1::2])
    unknown = {
        begun for begun in fences[::2] if begun not in _LANGUAGES and not begun.startswith("{")
    }
    assert not unknown
    assert not re.search(r"^[ ]*```console\n(?![ ]*\$ )", path.read_text(), re.MULTILINE), (
        "a console block begins with $"
    )


# --- the runner itself


def run(tmp_path: Path, text: str) -> Blocks:
    page = tmp_path / "page.md"
    page.write_text(text)
    blocks = Blocks(tmp_path)
    blocks.run(page)
    return blocks


@pytest.mark.parametrize("text", [
    "```console\n$ echo one\ntwo\n```\n",
    "```console\n$ false\n```\n",
    "```console\n$ echo one\n$ true\nthree\n```\n",
    "```python\nprint(1)\n```\n\n```text\n2\n```\n",
    "```python\nassert 0\n```\n",
    "```toml\na = \n```\n",
    "```console\n$ pip install 'penstock[nonsense]'\n```\n",
])  # fmt: skip
def test_a_block_that_does_not_do_what_the_page_shows_is_found(tmp_path: Path, text: str) -> None:
    with pytest.raises((SybilFailure, AssertionError, tomllib.TOMLDecodeError)):
        run(tmp_path, text)


def test_what_varies_may_be_left_open(tmp_path: Path) -> None:
    blocks = run(
        tmp_path,
        "```console\n$ echo one 17\none ...\n$ false\n$ echo $?\n1\n$ cd /\n$ pwd\n/\n```\n",
    )
    assert blocks.ran == ["console"]


def test_a_block_of_python_goes_on_from_the_one_before_or_becomes_a_file(tmp_path: Path) -> None:
    run(tmp_path, "```python\na = 1\n```\n```python\nprint(a + 1)\n```\n```text\n2\n```\n"
        "Save this as `three.py`:\n\n```python\nprint(3)\n```\n```console\n$ python three.py\n3\n```\n")  # fmt: skip
    assert (tmp_path / "three.py").read_text() == "print(3)\n"


def test_a_marked_block_is_left_out_with_its_reason(tmp_path: Path) -> None:
    blocks = run(tmp_path, '<!-- skip: next "needs a broker" -->\n```console\n$ false\n```\n')
    assert blocks.skipped == ["needs a broker"]


def test_a_command_ends_where_the_next_begins_or_its_here_document_does() -> None:
    block = "$ a \\\n  b\nout\n$ cat <<END\n$ x\nEND\nlast\n"
    assert list(split_commands(block)) == [
        ("a \\\n  b", "out\n"),
        ("cat <<END\n$ x\nEND", "last\n"),
    ]
