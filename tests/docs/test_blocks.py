"""Every Python and console block of the documentation runs, or says why not."""

import re
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS, PAGES, ROOT, SPARK, Blocks

# What a block that no test runs at all says of itself.
_NOT_RUN = ("needs ", "takes ", "a signature: ")
_REASON = re.compile(r'<!-- skip: next "([^"]+)" -->\n\n?```')
_LANGUAGES = {"python", "console", "toml", "text", "", "ini", "sql", "json"}


def name_of(path: Path) -> str:
    return str(path.relative_to(DOCS))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", [p for p in PAGES if "```" in p.read_text()], ids=name_of)
def test_the_blocks_of_a_page_do_what_it_shows(path: Path, tmp_path: Path) -> None:
    Blocks(tmp_path).run(path)


def test_what_does_not_run_says_why_or_which_test_runs_it() -> None:
    for path in [*PAGES, *SPARK]:
        reasons = _REASON.findall(path.read_text())
        assert path.read_text().count("<!-- skip:") == len(reasons), f"{path}: a marker without a block"  # fmt: skip
        for reason in reasons:
            named = re.findall(r"tests/[\w./]+", reason)
            assert named or reason.startswith(_NOT_RUN), f"{path}: {reason}"
            assert all((ROOT / each).exists() for each in named), f"{path}: {reason}"


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
