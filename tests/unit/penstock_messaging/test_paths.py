"""Names of groups and queues that may be files."""

from pathlib import Path

import pytest

from penstock.errors import ArgumentError
from penstock.files import Files
from penstock_messaging.groups.paths import GroupPaths, check_group_name, groups_of


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ä", "a\n", "x" * 121, 5, None])
def test_what_is_no_name_of_a_group_is_refused(name: object) -> None:
    with pytest.raises(ArgumentError, match="group"):
        check_group_name("consumer", name)


def test_names_of_groups_are_those_of_brokers() -> None:
    for name in ("billing", "%RETRY%x", "a|b", "x" * 120):
        assert check_group_name("consumer", name) == name


def test_only_names_that_penstock_writes_are_journals(tmp_path: Path) -> None:
    paths = GroupPaths(tmp_path, "g")
    assert paths.journals(Files()) == []
    folder = paths.topic("orders")
    folder.mkdir(parents=True)
    for name in ("0.journal", "12.journal", "01.journal", "x.journal", "70000.journal", "3.lock", "3.journal.new", "².journal"):  # fmt: skip
        (folder / name).touch()
    (folder / "4.journal").mkdir()
    assert paths.journals(Files()) == [("orders", 0), ("orders", 12)]


def test_only_folders_with_the_name_of_a_group_are_groups(tmp_path: Path) -> None:
    assert groups_of(Files(), tmp_path) == []
    GroupPaths(tmp_path, "g").folder.mkdir(parents=True)
    (GroupPaths(tmp_path, "g").folder.parent / "not a group").mkdir()
    (GroupPaths(tmp_path, "g").folder.parent / "file").touch()
    assert groups_of(Files(), tmp_path) == ["g"]
