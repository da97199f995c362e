"""The blocks of the README and of the pages about Spark, run in this process's session, do what the pages show."""

import re
from pathlib import Path
from typing import Any

import pytest
from sybil import Example
from sybil.region import Lexeme
from tests.docs.blocks import DOCS, ROOT, Blocks
from tests.lanes import at_night

import penstock

# Paths of the pages. Spark's own processes run where this one was started, not in the folder of the page.
_PATHS = re.compile(r'"(data|out|copy|check|checkpoint|checkpoints/orders)"')
README = ROOT / "README.md"


class InSession(Blocks):
    """Blocks whose paths are those of the page's folder for Spark too."""

    def python(self, example: Example) -> None:
        text: Lexeme = example.parsed
        whole = _PATHS.sub(lambda found: f'"{self.folder / found[1]}"', text)
        example.parsed = Lexeme(whole, text.offset, text.line_offset)
        super().python(example)


def test_the_readme_reads_with_spark(spark: Any, tmp_path: Path) -> None:
    blocks = InSession(tmp_path)
    blocks.run(README, lambda example: not is_for_installing(example))
    assert blocks.ran[-3:] == ["console", "python", "text"]


def is_for_installing(example: Example) -> bool:
    """Return whether a block of the README builds or installs Penstock: tests/packaging/test_readme.py runs it."""
    return "pip wheel" in str(example.parsed)


@pytest.mark.parametrize(
    "page", [at_night(page) for page in ("spark", "spark-source", "spark-sink", "spark-jobs")]
)
def test_the_blocks_of_a_page_about_spark_run(spark: Any, page: str, tmp_path: Path) -> None:
    """On each page but the first, `spark` is a session, `data` a store with orders, `frame` and `stream` are of it."""
    given: dict[str, Any] = {}
    if page != "spark":
        with penstock.open(tmp_path / "data") as store:
            for number in range(60):
                store.put("orders", b"order %d" % number, queue=number % 2, keys=[f"A-{number}"])
        reader = spark.read.format("penstock").option("subscribe", "orders")
        rows = (
            spark.readStream.format("penstock")
            .option("subscribe", "orders")
            .load(str(tmp_path / "data"))
        )
        given = {"spark": spark, "frame": reader.load(str(tmp_path / "data")).select("key", "value"),
                 "stream": rows.select("key", "value")}  # fmt: skip

    def prepared(example: Example) -> bool:
        example.document.namespace.update(
            {name: value for name, value in given.items() if name not in example.document.namespace}
        )
        return True

    blocks = InSession(tmp_path)
    try:
        blocks.run(DOCS / f"{page}.md", prepared)
        assert "python" in blocks.ran
    finally:
        for query in spark.streams.active:
            query.stop()
