"""What users can name is in the docs: hooks, strategies, verbs. Settings and errors are in tables that `tests/docs` compares."""

import re
from pathlib import Path

import pytest

from penstock.contracts.foreign import KINDS
from penstock.plugins import hookspecs
from penstock.plugins.registry import load_registry
from penstock_spark.cli import group
from penstock_tools.cli.root import own_verbs

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
REGISTRY = load_registry()

HOOKS = [name for name in vars(hookspecs) if name.startswith("penstock_")]


@pytest.mark.parametrize(("page", "names"), [("plugins.md", HOOKS), ("cli.md", own_verbs())])
def test_every_name_is_in_the_docs(page: str, names: list[str]) -> None:
    text = (DOCS / page).read_text()
    missing = [name for name in names if f"`{name}" not in text]
    assert not missing


def test_every_spark_job_has_a_section() -> None:
    text = (DOCS / "spark-jobs.md").read_text()
    assert [name for name in group.module_names() if f"\n## {name}\n" not in text] == []


def test_every_strategy_is_in_the_docs() -> None:
    text = (DOCS / "configuration.md").read_text()
    for strategies in REGISTRY.sets().values():
        for name in strategies.names():
            if strategies.offered_by(name).startswith("builtin-"):
                assert f'"{name}"' in text, name


def test_what_is_not_understood_is_in_the_docs_as_in_the_code() -> None:
    text = (DOCS / "broker-directories.md").read_text()
    for kind in KINDS:
        writing = "refused" if kind.stops_writing else "continues"
        row = re.search(
            rf"^\| `{kind.name}` \| (.*) \| .* \| .* \| (.*) \| .* \|$", text, re.MULTILINE
        )
        assert row, kind.name
        assert row.groups() == (kind.what, writing)
    assert text.count("\n| `") == len(KINDS)


def test_every_test_that_the_track_record_names_is_there() -> None:
    text = (DOCS / "track-record.md").read_text()
    code = "".join(each.read_text() for each in TESTS.rglob("test_*.py"))
    gone = [
        path for path in re.findall(r"`tests/([\w/]+\.py)`", text) if not (TESTS / path).exists()
    ]
    gone += [name for name in re.findall(r"\(`(\w+)`\)", text) if name not in code]
    assert not gone


def test_every_link_to_a_section_leads_to_one() -> None:
    """A renamed heading broke the build of the docs, which only the night makes."""
    pages = [page for page in DOCS.rglob("*.md") if "extra" not in page.parts]
    wrong = []
    for page in pages:
        for path, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", page.read_text()):
            headings = re.findall(r"^#+ (.*)$", (page.parent / path if path else page).read_text(), re.MULTILINE)  # fmt: skip
            slugs = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
            if anchor not in slugs:
                wrong.append(f"{page.name}: {path}#{anchor}")
    assert not wrong
