"""Members of a group: seen as long as they live, by themselves and by others."""

import os
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.files import Files
from penstock_messaging.groups.members import (
    Membership,
    living_members,
    remove_dead_members,
)
from penstock_messaging.groups.paths import GroupPaths


@pytest.fixture
def paths(tmp_path: Path) -> GroupPaths:
    """Return those of a group."""
    return GroupPaths(tmp_path, "g")


def joined(paths: GroupPaths, files: Files | None = None) -> Membership:
    """Return a new member."""
    made = Membership(files or Files(), paths, "orders,log-*", 5, {"ordered": True})
    made.join()
    return made


def test_members_are_listed_until_they_leave(paths: GroupPaths) -> None:
    assert living_members(Files(), paths) == []
    one, other = joined(paths), joined(paths)
    found = living_members(Files(), paths)
    assert [m.id for m in found] == sorted([one.id, other.id])
    assert (found[0].topics, found[0].since_ms, found[0].options) == ("orders,log-*", 5, {"ordered": True})  # fmt: skip
    one.leave()
    one.leave()
    assert [m.id for m in living_members(Files(), paths)] == [other.id]
    assert [p.name for p in paths.members.iterdir()] == [other.id]


def test_an_id_that_somebody_joins_with_is_not_taken(paths: GroupPaths) -> None:
    numbers = iter(["a" * 16, "b" * 16])
    paths.members.mkdir(parents=True)
    made = Membership(Files(), paths, "orders", 5, {}, random=lambda: next(numbers))
    taken = Files().lock_one(paths.members / f"{os.getpid()}-{'a' * 16}.joining")
    assert taken is not None
    made.join()
    assert made.id == f"{os.getpid()}-{'b' * 16}"
    taken.release()
    made.leave()


def test_a_dead_members_file_is_removed_by_whoever_notices(paths: GroupPaths) -> None:
    one = joined(paths)
    for name in ("12-0123456789abcdef", "12-0123456789abcdef.joining", "notes.txt"):
        (paths.members / name).write_text("{}")
    assert [m.id for m in living_members(Files(), paths)] == [one.id]
    remove_dead_members(Files(), paths)
    assert {p.name for p in paths.members.iterdir()} == {one.id, "notes.txt"}
    assert one.is_alive


def test_a_member_whose_file_was_removed_joins_again(paths: GroupPaths) -> None:
    one = joined(paths)
    before = one.id
    (paths.members / before).unlink()
    assert one.is_alive is False
    one.join()
    assert (one.is_alive, before in one.id) == (True, False)
    assert [m.id for m in living_members(Files(), paths)] == [one.id] != [before]


def test_a_file_that_is_removed_before_it_is_locked_is_made_anew(paths: GroupPaths) -> None:
    class Hasty(Files):
        times = 0

        def lock_one(self, path: Path):  # type: ignore[no-untyped-def] # as in Files
            lock = super().lock_one(path)
            if self.times:
                self.times -= 1
                path.unlink()
            return lock

    files = Hasty()
    files.times = 2
    assert joined(paths, files).is_alive
    files.times = 100
    with pytest.raises(StorageError, match="removed again and again"):
        joined(paths, files)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"pid":1}', b'{"pid":1,"since_ms":"x","topics":"t","options":{}}'])  # fmt: skip
def test_a_living_member_with_a_wrong_file_is_passed_over(raw: bytes, paths: GroupPaths) -> None:
    one = joined(paths)
    (paths.members / one.id).write_bytes(raw)
    assert living_members(Files(), paths) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff", b"[" * 100_000, b'{"pid":1e999,"since_ms":0,"topics":"t","options":{}}'],
)
def test_a_locked_file_with_other_content_is_no_member(content: bytes, paths: GroupPaths) -> None:
    one = joined(paths)
    path = paths.members / "12-0123456789abcdef"
    lock = Files().lock_one(path)
    path.write_bytes(content)
    assert [m.id for m in living_members(Files(), paths)] == [one.id]
    remove_dead_members(Files(), paths)
    assert path.exists()
    assert lock is not None
    lock.release()
