"""Every Python and console block of the documentation runs, or says why not."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS, PAGES, ROOT, SPARK, Blocks

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
    "replication.md": {
        "needs a second process; tests/replicas/test_kills.py runs these calls": 4,
        "needs a second machine; tests/replicas/test_sockets.py has both": 1,
        "needs a broker; tests/interop/test_broker_copies.py makes this call": 1,
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
