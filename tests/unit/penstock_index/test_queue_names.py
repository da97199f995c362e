"""Which folders are queues: strangers are named once and left, links are refused to a writer."""

from pathlib import Path

import pytest

from penstock.errors import StrayFileError
from penstock.files import Files
from penstock_index.queue_names import QueueNames, queue_problem, topic_problem

TOPIC_NAMES = [("t", True), ("größe", True), ("", False), ("..", False), ("a\n", False)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("t/0", "t/12", "t/007", "t/x", "bad\n/0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "t" / "5").write_bytes(b"")
    return tmp_path


def test_folders_of_queues_are_found_and_strangers_named_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = QueueNames(Files(), root, read_only=False)
    for _ in range(2):
        assert sorted(names.folders()) == [("t", 0), ("t", 12)]
    assert len(caplog.records) == 5
    assert len(list(names.findings())) == 5
    assert all(each.what_now for each in names.findings())


def test_where_a_stranger_stands_no_queue_can_be(root: Path) -> None:
    names = QueueNames(Files(), root, read_only=False)
    list(names.folders())
    names.check_free("t", 0)
    for topic, number in (("t", 5), ("file", 0)):
        with pytest.raises(StrayFileError, match="needs this name"):
            names.check_free(topic, number)


def test_a_link_is_refused_to_a_writer_and_not_followed_by_a_reader(root: Path) -> None:
    (root / "link").symlink_to(root / "t")
    with pytest.raises(StrayFileError, match="a link"):
        list(QueueNames(Files(), root, read_only=False).folders())
    assert sorted(QueueNames(Files(), root, read_only=True).folders()) == [("t", 0), ("t", 12)]


def test_without_the_folder_there_are_no_queues(tmp_path: Path) -> None:
    assert list(QueueNames(Files(), tmp_path / "none", read_only=False).folders()) == []


@pytest.mark.parametrize(("name", "is_right"), TOPIC_NAMES)
def test_a_topic_is_what_could_be_put_to(name: str, is_right: bool) -> None:
    assert (topic_problem(name) == "") is is_right


@pytest.mark.parametrize(
    ("name", "is_right"), [("0", True), ("65535", True), ("65536", False), ("00", False), ("-1", False), ("٣", False), ("", False)]
)  # fmt: skip
def test_a_queue_is_a_number_as_the_store_writes_it(name: str, is_right: bool) -> None:
    assert (queue_problem(name) == "") is is_right
