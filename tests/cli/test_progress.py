"""Progress that moves, on a terminal that is played: `verify` once stood at 0 % until its end."""

import io
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from rich import progress as rich_progress

import penstock
from penstock import Message
from penstock_tools.cli.output import Bar
from penstock_tools.cli.root import run

# A CRC that only covers bodies: records are then also checked by counting those of each queue, which reads the log once more.
SMALL: dict[str, Any] = {"geometry.segment_bytes": 65536, "log.checksum": "crc32"}
SEGMENTS = 12


class Terminal(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True

    def run(self, *arguments: str) -> int:
        """Run a command with standard error on this terminal."""
        with redirect_stderr(self):
            return run(arguments)

    def percentages(self) -> list[int]:
        """Return the percentages in the order in which they were shown, without repetitions."""
        found = [int(text) for text in re.findall(r"(\d+)%", self.getvalue())]
        return [one for one, before in zip(found, [-1, *found], strict=False) if one != before]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal; each step of a bar is drawn at once, not ten times a second by a thread."""
    made, update = Terminal(), rich_progress.Progress.update

    def drawn(bar: rich_progress.Progress, *arguments: Any, **given: Any) -> None:
        update(bar, *arguments, **given)
        bar.refresh()

    monkeypatch.setattr(rich_progress.Progress, "update", drawn)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data", environ={}, **SMALL) as made:
        made.put_many(
            Message("t", bytes(1000), queue=n % 3, keys=[str(n)]) for n in range(60 * SEGMENTS)
        )
        segments = made.stats()["segments"]
    assert segments >= SEGMENTS
    return tmp_path / "data"


@pytest.mark.parametrize(
    "arguments",
    [("verify",), ("verify", "--deep", "--jobs", "1"), ("verify", "--deep", "--jobs", "2"), ("repair",)],
    ids=" ".join,
)  # fmt: skip
def test_a_check_of_the_log_shows_how_far_it_is(
    arguments: tuple[str, ...], store: Path, terminal: Terminal
) -> None:
    assert terminal.run(arguments[0], str(store), *arguments[1:]) == 0
    shown = terminal.percentages()
    assert shown == sorted(shown)
    assert len(shown) >= SEGMENTS - 2, shown
    assert min(shown) <= 15
    assert shown[-1] == 100


def test_a_sparse_segment_counts_by_what_was_written(tmp_path: Path, terminal: Terminal) -> None:
    """A store of 5 MB in a segment of 64 MiB showed 0 % up to the last moment, and then 100 %."""
    with penstock.open(tmp_path / "data", environ={}) as made:
        made.put_many(Message("t", bytes(50_000), queue=0) for _ in range(400))
    assert terminal.run("verify", str(tmp_path / "data")) == 0
    shown = terminal.percentages()
    assert any(30 < one < 70 for one in shown), shown
    assert shown[-1] == 100


def test_ingest_shows_how_far_it_is(tmp_path: Path, terminal: Terminal) -> None:
    source = tmp_path / "rows.txt"
    source.write_bytes(b"".join(b"%09d\n" % n for n in range(20_000)))
    assert terminal.run("ingest", str(tmp_path / "data"), str(source), "--topic", "t") == 0
    assert len(terminal.percentages()) >= 9


def test_parquet_shows_how_far_it_is(tmp_path: Path, terminal: Terminal) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    parquet.write_table(
        pa.table({"n": list(range(20_000))}), tmp_path / "rows.parquet", row_group_size=1000
    )
    source = str(tmp_path / "rows.parquet")
    assert terminal.run("ingest", str(tmp_path / "data"), source, "--topic", "t") == 0
    # In bytes read: a small file is read at once.
    assert terminal.percentages()[-1] >= 90


def test_an_unknown_total_is_no_percentage_and_more_than_all_is_all(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Bar("what", None, "items", quiet=False) as bar:
        bar.set(5, 5)
        assert terminal.percentages() == []
        bar.total(10)
        bar.set(5, 5)
        bar.set(20, 20)
    assert terminal.percentages() == [50, 100]
    with redirect_stderr(terminal), Bar("what", 10, "items", quiet=True) as bar:
        bar.set(7, 7)
    assert 70 not in terminal.percentages()
