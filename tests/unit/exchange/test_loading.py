"""Rows of any source, each once: what is noted, what is compared with the log, and how rows are grouped."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock.errors import CorruptionError, ImportFileError, MessageError, StorageError
from penstock.files import Files
from penstock_tools.exchange.importing import Hooks, ImportOptions, Loader, LoadRow
from penstock_tools.exchange.progress import Reached, SourceNote, stored_from
from penstock_tools.exchange.rows import Put


def row(number: int, body: bytes, facts: str = "") -> LoadRow:
    put = None if body == b"!" else Put(Message("t", body, queue=-1 if body == b"?" else 0), None)
    error = MessageError("no") if put is None else None
    return LoadRow(number, f"row {number}", put, error, body, facts)


def rows_of(bodies: str) -> Callable[[], Iterator[LoadRow]]:
    return lambda: iter([row(n, body.encode()) for n, body in enumerate(bodies, 1)])


def load(
    store: Any, path: Path, bodies: str, hooks: Hooks | None = None, **options: Any
) -> tuple[int, int]:
    """Return how many rows earlier loads processed, and how many this one did."""
    given = ImportOptions(**{"skip_bad": True, **options})
    loader = Loader(store, io.BytesIO(), str(path), given, hooks or Hooks())
    loader.load(rows_of(bodies))
    return loader.before.rows, loader.reached.rows - loader.before.rows


def bodies(store: Any) -> str:
    return "".join(m.body.decode() for m in store.scan("t"))


def test_a_digest_depends_on_each_row_and_their_order(open_small: OpenStore) -> None:
    digests = set()
    with open_small() as store:
        for name, rows in enumerate([
            [("a", "")], [("b", "")], [("ab", "")], [("a", ""), ("b", "")], [("b", ""), ("a", "")], [("a", ""), ("", "b")],
            [("a", ""), ("b", ""), ("", "")], [("a", "x")], [("", "\udc80")], [],
        ]):  # fmt: skip
            made = [row(n, body.encode(), facts) for n, (body, facts) in enumerate(rows, 1)]
            loader = Loader(store, io.BytesIO(), str(name), ImportOptions(), Hooks())
            loader.load(made.__iter__)
            digests.add(loader.reached.digest)
    assert len(digests) == 10


@pytest.mark.parametrize("done", ["", "a", "ab", "a!b", "!?a", "a?b!", "?"])
def test_after_a_kill_the_rows_that_are_stored_are_not_stored_again(
    open_small: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: str
) -> None:
    """Also behind rows that are refused before they come to the store, or by the store."""

    def kill(_done: int, _rows: int) -> None:
        raise KeyboardInterrupt

    with open_small() as store:
        with monkeypatch.context() as patch:
            # The last note was written before the first row.
            patch.setattr(Loader, "_stop", lambda *_: None)
            if done:
                with pytest.raises(KeyboardInterrupt):
                    load(store, tmp_path / "x", done, Hooks(on_progress=kill))
            else:
                patch.setattr(Loader, "_end", lambda _: None)
                load(store, tmp_path / "x", "")
        whole = done + "c?!d"
        before, now = load(store, tmp_path / "x", whole)
        assert before + now == len(whole)
        # Refused rows behind the last that is stored are processed again.
        assert before == len(done.rstrip("!?"))
        assert bodies(store) == whole.replace("!", "").replace("?", "")
        assert load(store, tmp_path / "x", whole) == (len(whole), 0)


def test_an_interrupted_source_that_changed_is_refused_and_a_whole_one_is_another(
    open_small: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small() as store:
        with pytest.raises(ImportFileError, match="row 3: no"):
            load(store, tmp_path / "x", "ab!", skip_bad=False)
        for changed in ("a", "ba!", "", "xb!"):
            with pytest.raises(ImportFileError, match="has changed"):
                load(store, tmp_path / "x", changed)
        assert bodies(store) == "ab"
        assert load(store, tmp_path / "x", "abcd") == (2, 2)
        assert load(store, tmp_path / "x", "abcde") == (4, 1)
        assert "another source" not in caplog.text
        assert load(store, tmp_path / "x", "abc") == (0, 3)
        assert "another source" in caplog.text
        assert load(store, tmp_path / "x", "abc", restart=True) == (0, 3)
        assert load(store, tmp_path / "x", "abc", topic="y") == (0, 3)
        assert load(store, tmp_path / "y", "abc") == (0, 3)
        assert bodies(store) == "abcde" + "abc" * 4


def test_standard_input_is_not_noted_even_if_it_is_a_file(open_small: OpenStore) -> None:
    with open_small() as store:
        for _ in range(2):
            loader = Loader(store, io.BytesIO(), "-", ImportOptions(), Hooks())
            loader.load(rows_of("ab"))
            assert not loader.is_noted
        assert bodies(store) == "abab"
        assert not (store.path / "penstock" / "loads").exists()


def test_a_failed_put_is_not_noted_as_exact(
    open_small: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt between storing rows and counting them leaves the older note, and the log says the rest."""
    with open_small() as store:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Loader, "_count", _interrupted)
            load(store, tmp_path / "x", "abc")
        assert bodies(store) == "abc"
        assert load(store, tmp_path / "x", "abcd") == (3, 1)
        assert bodies(store) == "abcd"


def _interrupted(*_: object, **_given: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("data", [b"", b"x", b"00000000 {}", b"not a line\n"])
def test_a_corrupt_note_is_an_error_and_never_a_start_from_the_beginning(
    tmp_path: Path, data: bytes
) -> None:
    note = SourceNote(tmp_path, b"a file", Files())
    note.write(Reached(rows=5))
    note.path.write_bytes(data)
    with pytest.raises(CorruptionError, match="find out which rows are stored"):
        note.read()


def test_every_changed_byte_of_a_note_is_noticed(tmp_path: Path) -> None:
    note = SourceNote(tmp_path, b"a file", Files())
    note.write(Reached(rows=5, log_offset=7))
    data = note.path.read_bytes()
    for at in range(len(data) - 1):
        note.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            note.read()


def test_the_log_is_read_from_an_offset_over_segments(open_small: OpenStore) -> None:
    with open_small(**{"geometry.segment_bytes": 4096}) as store:
        receipts = [store.put("t", bytes(n * 7 % 300), queue=0) for n in range(100)]
        assert store.stats()["segments"] > 5
        for first in (0, 1, 50, 99):
            found = [m.log_offset for m in stored_from(store, receipts[first].log_offset)]
            assert found == [r.log_offset for r in receipts[first:]]
        assert list(stored_from(store, store.flush())) == []


@pytest.mark.slow
def test_a_log_that_does_not_reach_the_offset_is_an_error(open_small: OpenStore) -> None:
    with open_small(**{"geometry.segment_bytes": 4096}) as store:
        receipts = [store.put("t", bytes(300), queue=0) for _ in range(60)]
        store.flush()
        with pytest.raises(StorageError, match="not known which rows are stored"):
            list(stored_from(store, receipts[-1].log_offset + receipts[-1].size + 1))
        assert store.discard_before(log_offset=9000)
        with pytest.raises(StorageError, match="deleted or cut off"):
            list(stored_from(store, 0))


@pytest.mark.parametrize(("rows", "stored", "rest"), [
    ("abc", "", "abc"), ("abc", "a", "bc"), ("abc", "abc", ""), ("aab", "a", "ab"), ("aaab", "aa", "ab"), ("abc", "xaxxbx", "c"),
    ("a!b!c", "ab", "!c"), ("!!a", "a", ""), ("!a", "", "!a"), ("a!", "a", "!"), ("", "a", ""), ("!!", "a", "!!"), ("abc", "bca", "bc"),
])  # fmt: skip
def test_rows_that_are_stored_are_separated_from_the_others(
    open_small: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    rows: str, stored: str, rest: str,
) -> None:  # fmt: skip
    with open_small() as store:
        with monkeypatch.context() as patch:
            # The last note was written before the first row.
            patch.setattr(Loader, "_end", lambda _: None)
            load(store, tmp_path / "x", "")
        store.put_many([Message("t", each.encode(), queue=0) for each in stored])
        assert load(store, tmp_path / "x", rows) == (len(rows) - len(rest), len(rest))
        assert bodies(store) == stored + rest.replace("!", "")
