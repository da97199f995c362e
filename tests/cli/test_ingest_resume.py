"""An ingest that was interrupted goes on where it stopped: no row is missing, and none is stored twice.

The process kills itself at a call that the test picks, so no test depends on a clock. What a source may be and what a
note says is tested in `tests/unit/exchange/test_importing.py`; a crash before each call in `tests/crash/test_import.py`.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Done, run
from tests.faults.test_disks import small_disk

import penstock

__all__ = ["small_disk"]

ROWS = 1100
# Batches of ten rows, noted after each third: so that a few rows go through every state.
CHILD = """
import errno, os, signal, sys
from penstock_tools.cli.root import run
from penstock_tools.exchange import importing, rows
from penstock_tools.exchange.progress import SourceNote
from penstock.files import Files
from penstock.store.store import Store

where, count, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rows._ROWS, importing._NOTE_ROWS = 10, 30

def end():
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif how == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    else:
        os.kill(os.getpid(), signal.SIGKILL)

def ending(cls, name, before):
    real, calls = getattr(cls, name), [0]
    def called(self, *arguments, **given):
        calls[0] += 1
        if before and calls[0] == count:
            end()
        found = real(self, *arguments, **given)
        if not before and calls[0] >= count:
            end()
        return found
    setattr(cls, name, called)

places = {"put": (Store, "put_many"), "note": (SourceNote, "write"), "rename": (Files, "rename"),
          "close": (Store, "close"), "end": (importing.Loader, "_end")}
side, place = where.split()
ending(*places[place], side == "before")
sys.exit(run(["ingest", "store", "rows.txt", "--topic", "t", "--json", "-q", *sys.argv[4:],
              "--set", "geometry.segment_bytes=8192"]))
"""


def ingest(*more: str) -> Done:
    line = ["ingest", "store", "rows.txt", "--topic", "t", "--json", "-q", *more]
    return run(*line, "--set", "geometry.segment_bytes=8192")


def ended(where: str, count: int, how: str = "kill", *more: str) -> int:
    """Run the command in a process that ends somewhere; returns its exit code."""
    code = [sys.executable, "-c", CHILD, where, str(count), how, *more]
    return subprocess.run(code, capture_output=True, check=False).returncode


def facts(done: Done) -> dict[str, Any]:
    done.expect(0)
    (found,) = done.rows
    return found


def stored(folder: Path, topic: str = "t") -> list[int]:
    # For writing: of a store whose writer was killed, a reader sees only what that writer had dispatched.
    with penstock.open(folder / "store") as store:
        return [int(message.body) for message in store.scan(topic)]


def notes(folder: Path) -> list[Path]:
    return list((folder / "store" / "penstock" / "loads").glob("?" * 32))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, range(ROWS))
    return tmp_path


def write(folder: Path, numbers: Any) -> None:
    (folder / "rows.txt").write_text("".join(f"{number}\n" for number in numbers))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("before put", 1), ("after put", 1), ("before put", 2), ("after put", 4), ("after put", 37),
        ("before note", 1), ("after note", 1), ("before note", 4), ("after note", 5),
        ("before rename", 3), ("after rename", 6), ("before end", 1), ("after end", 1), ("before close", 1),
    ],
)  # fmt: skip
def test_a_run_after_one_that_ended_stores_the_rest(
    where: str, count: int, how: str, folder: Path
) -> None:
    assert ended(where, count, how) == (-signal.SIGKILL if how == "kill" else 130)
    again = facts(ingest())
    assert again["resumed_at"] + again["stored"] == ROWS
    assert (where in ("before end", "after end", "before close")) == (again["stored"] == 0)
    assert stored(folder) == list(range(ROWS))


def test_what_others_store_in_between_is_not_taken_for_rows(folder: Path) -> None:
    assert ended("after put", 5) == -signal.SIGKILL
    with penstock.open(folder / "store") as store:
        store.put("other", b"50", queue=0)
        store.put("t", b"1000000", queue=0)
    assert facts(ingest())["resumed_at"] == 50
    assert stored(folder) == [*range(50), 1000000, *range(50, ROWS)]
    # After an end that was noted exactly, even the same text is another's message.
    write(folder, range(ROWS + 500))
    facts(ingest())
    count = len(stored(folder))
    assert ended("before put", 5, "interrupt", "--key-field", "line") == 130
    with penstock.open(folder / "store") as store:
        store.put("t", b"50", queue=0, keys=["50"])
    assert facts(ingest("--key-field", "line"))["resumed_at"] == 50
    assert stored(folder)[count:] == [*range(50), 50, *range(50, ROWS + 500)]


def test_a_source_that_has_changed_and_a_note_that_cannot_be_read_are_refused_with_the_way_out(
    folder: Path,
) -> None:
    assert ended("after put", 20) == -signal.SIGKILL
    before = stored(folder)
    write(folder, range(1, ROWS))
    (note,) = notes(folder)
    for code, said in ((2, "has changed"), (5, note.name)):
        done = ingest()
        done.expect(code, err=said)
        assert "--restart" in done.err
        assert "Traceback" not in done.err
        assert stored(folder) == before
        note.write_bytes(b"{")
    assert facts(ingest("--restart"))["stored"] == ROWS - 1


def test_csv_and_parquet_go_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    parquet.write_table(pa.table({"n": list(range(300))}), tmp_path / "rows.parquet")
    csv = "n\n" + "".join(f"{n}\n" for n in range(300))
    parquet_bytes = (tmp_path / "rows.parquet").read_bytes()
    for kind, data in (("csv", csv.encode()), ("parquet", parquet_bytes)):
        (tmp_path / "rows.txt").write_bytes(data)
        more = ("--format", kind, "--topic", kind)
        assert ended("after put", 11, "kill", *more) == -signal.SIGKILL
        assert facts(ingest(*more))["resumed_at"] == 110
        with penstock.open(tmp_path / "store") as store:
            assert [int(json.loads(m.body)["n"]) for m in store.scan(kind)] == list(range(300))


def test_a_store_is_whole_with_the_note_in_it(folder: Path) -> None:
    assert ended("after put", 20) == -signal.SIGKILL
    assert notes(folder)
    with penstock.open(folder / "store"):
        pass
    with penstock.open(folder / "store", read_only=True) as store:
        assert list(store.verify(deep=True)) == []
    assert not penstock.repair(folder / "store", apply=True).steps


def test_a_full_disk_stops_it_and_space_lets_it_go_on(small_disk: Path, tmp_path: Path) -> None:
    """A real disk of 2 MiB, on which not even the note may find room."""
    source = tmp_path / "rows.txt"
    source.write_text("".join(f"{number:0>200}\n" for number in range(6000)))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    command = [
        sys.executable, "-m", "penstock", "ingest", str(small_disk / "store"), str(source), "--topic", "t", "--json",
        "--set", "geometry.segment_bytes=65536", "--set", "geometry.index_slots=100",
        "--set", "geometry.index_entries=400",
    ]  # fmt: skip
    for size in (1 << 19, 0):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 4, done.stderr
        assert "space" in done.stderr
        os.truncate(ballast, size)
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    with penstock.open(small_disk / "store", read_only=True) as store:
        numbers = [int(message.body) for message in store.scan("t")]
    assert numbers == list(range(len(numbers)))
    if found.returncode == 0:
        assert len(numbers) == 6000
    else:
        assert found.returncode == 4, found.stderr
