"""The store's lock: one holder whatever became of the file, and nothing left with a child."""

from pathlib import Path

from penstock.files import Files, lock_file
from penstock.files.lock_file import take


def test_a_lock_that_is_held_is_refused_also_in_the_same_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = take(path, 0o600)
    assert held is not None
    assert take(path, 0o600) is None
    assert lock_file.is_taken(path)
    held.release()
    assert not lock_file.is_taken(path)
    again = take(path, 0o600)
    assert again is not None
    again.release()


def test_a_lock_whose_file_somebody_removed_still_holds(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = take(path, 0o600)
    path.unlink()
    assert take(path, 0o600) is None
    assert held is not None
    held.release()


def test_released_twice_or_forgotten_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = take(path, 0o600)
    assert held is not None
    held.release()
    held.release()
    held = take(path, 0o600)
    del held
    assert not lock_file.is_taken(path)


def test_where_there_is_no_file_nobody_holds_it(tmp_path: Path) -> None:
    assert not lock_file.is_taken(tmp_path / "none")


def test_the_lock_of_one_file_keeps_a_second_one_out(tmp_path: Path) -> None:
    path = tmp_path / "m.csv.part"
    lock = Files().lock_one(path)
    assert lock is not None
    assert Files().lock_one(path) is None
    # Another file of the folder is not locked with it, as a store's lock would do.
    other = Files().lock_one(tmp_path / "n.csv.part")
    assert other is not None
    other.release()
    lock.release()
    again = Files().lock_one(path)
    assert again is not None
    again.release()


def test_a_lock_knows_whether_its_file_still_has_the_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_file.take_file(path, 0o600)
    assert held is not None
    assert held.has_name(path)
    path.rename(tmp_path / "other")
    assert not held.has_name(path)
    assert held.has_name(tmp_path / "other")
    path.touch()
    assert not held.has_name(path)
    held.release()
    assert not held.has_name(tmp_path / "other")
