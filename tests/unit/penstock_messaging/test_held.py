"""The object of a prepared message as a context manager, and of a store that is only read."""

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import PreparedFinishedError, ReadOnlyError
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.prepared.held import HeldPrepared, ShownPrepared


def opened(path: Path, **more: Any) -> penstock.Store:
    return penstock.open(path, environ={}, clock=ManualClock(), spawn=ManualWorkers(), **more)


def test_the_end_of_a_block_commits_unless_it_was_finished_there(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        with store.prepare("t", b"1", group="g") as prepared:
            assert isinstance(prepared, HeldPrepared)
            assert (prepared.topic, prepared.queue, prepared.group) == ("t", 0, "g")
            assert list(store.scan("t")) == []
        with store.prepare("t", b"2", group="g") as prepared:
            prepared.rollback()
        with store.prepare("t", b"3", group="g") as prepared:
            prepared.commit()
        assert [m.body for m in store.scan("t")] == [b"1", b"3"]
        assert store.prepared() == []


def test_an_exception_rolls_back_unless_a_check_back_knows_more(tmp_path: Path) -> None:
    """The exception may have come after the commit of the database: Ctrl-C, or an answer that was lost on its way."""
    with opened(tmp_path / "s") as store, pytest.raises(KeyboardInterrupt), store.prepare("t", b"1", group="g"):  # fmt: skip
        raise KeyboardInterrupt
    with opened(tmp_path / "s", check_back={"g": lambda _: "commit"}) as store:
        assert store.prepared() == []
        with pytest.raises(ValueError, match="lost"), store.prepare("t", b"2", group="g"):
            raise ValueError("lost")
        with pytest.raises(ValueError, match="lost"), store.prepare("t", b"3", group="other"):
            raise ValueError("lost")
        assert [each.message.body for each in store.prepared()] == [b"2"]


def test_an_error_of_the_rollback_is_a_note_on_the_error_of_the_block(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    with pytest.raises(ValueError, match="first") as caught, store.prepare("t", b"1", group="g"):
        store.close()
        raise ValueError("first")
    assert "is still open" in caught.value.__notes__[0]


def test_a_message_that_another_call_finishes_within_the_block_ends_it(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        with store.prepare("t", b"1", group="g") as prepared:
            (same,) = store.prepared()
            same.commit()
        with pytest.raises(PreparedFinishedError):
            prepared.rollback()
        assert store.max_offset("t") == 1


def test_a_reader_looks_only(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "s", clock=clock, spawn=ManualWorkers()) as store:
        store.prepare("t", b"1", group="g", tag="a")
    clock.now_ms += 2500
    with open_store(tmp_path / "s", clock=clock, read_only=True) as reader:
        (shown,) = reader.prepared()
        assert isinstance(shown, ShownPrepared)
        assert (shown.age_s, shown.checks, shown.message.tag) == (2.5, 0, "a")
        assert "of group 'g' for 't'" in repr(shown)
        with pytest.raises(ReadOnlyError), shown:
            pass
        with pytest.raises(ReadOnlyError):
            reader.prepare("t", b"2", group="g")
