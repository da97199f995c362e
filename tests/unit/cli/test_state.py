"""The state of a store in one statement: in use by whom, not closed cleanly, or closed."""

from pathlib import Path

from penstock.cli.state import StoreState, state_of
from penstock.testing import FaultyFiles, ManualWorkers, open_store


def state(path: Path) -> StoreState:
    with open_store(path, read_only=True) as reader:
        return state_of(reader)


def test_a_store_in_use_names_its_process_and_is_not_called_unclean(tmp_path: Path) -> None:
    """`stat` said "in use, or not closed cleanly", which left the reader to find out which."""
    path = tmp_path / "s"
    with open_store(path, spawn=ManualWorkers()) as store:
        store.put("t", b"x")
        found = state(path)
        assert found.text.startswith("in use by this process ")
        assert found.used_by is not None
        assert (found.used_by in found.text, found.closed_cleanly) == (True, False)
    assert state(path) == ("closed cleanly", None, True)


def test_a_store_that_a_crash_left_is_not_closed_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "s"
    open_store(path, spawn=ManualWorkers()).close()
    (path / "abort").touch()
    found = state(path)
    assert found.text.startswith(
        "not closed cleanly; the next program that opens it for writing recovers it"
    )
    assert (found.used_by, found.closed_cleanly) == (None, False)


def test_a_lock_of_another_program_is_named_by_its_process(tmp_path: Path) -> None:
    class OfBroker(FaultyFiles):
        def is_locked(self, path: Path) -> bool:
            return True

        def lock_owner(self, path: Path) -> int | None:
            return 4711

    path = tmp_path / "s"
    open_store(path, spawn=ManualWorkers()).close()
    with open_store(path, read_only=True) as reader:
        assert state_of(reader, OfBroker()).text == "in use by process 4711"
