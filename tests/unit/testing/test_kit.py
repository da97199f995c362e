"""What tests of stores and strategies are made of."""

from pathlib import Path

import pytest

from penstock.testing import SimulatedDisk
from penstock.testing.kit import (  # fmt: skip
    SMALL,
    WrittenLog,
    copy_store,
    make_context,
    messages,
    open_store,
)


def test_messages_are_told_apart_by_their_bodies() -> None:
    made = messages(20, first=5)
    assert [message.body.partition(b":")[0] for message in made] == [b"%d" % n for n in range(5, 25)]  # fmt: skip
    assert len({(message.topic, message.queue) for message in made}) == 6


def test_a_context_has_its_folders_and_small_files() -> None:
    disk = SimulatedDisk()
    context = make_context(Path("/s"), files=disk)
    assert context.geometry is SMALL
    assert disk.is_folder(Path("/s/penstock"))
    assert disk.is_folder(Path("/s/commitlog"))


def test_a_written_log_has_what_was_sent_and_can_lose_its_head(tmp_path: Path) -> None:
    log = WrittenLog(tmp_path / "s", 700)
    assert len(log.offsets()) == len(log.sent) == 700
    log.lose_head(1)
    assert log.view.min_offset == SMALL.segment_bytes
    assert len(log.offsets()) < 700


def test_two_logs_are_alike_as_far_as_that_is_asked(tmp_path: Path) -> None:
    one, other = (WrittenLog(tmp_path / name, 30, alike=alike) for name, alike in (("a", 10), ("b", None)))  # fmt: skip
    assert one.sent[:10] == other.sent[:10]
    assert one.sent[10] != other.sent[10]


def test_a_copy_of_a_store_is_opened_as_if_it_had_crashed(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", retention=[]) as store:
        store.put("t", b"x")
        store.flush()
        copy_store(tmp_path / "s", tmp_path / "copy")
    with open_store(tmp_path / "copy", retention=[]) as copy:
        assert copy.recovery is not None
        assert copy.recovery.state == "abnormal"
        assert copy.max_offset("t") == 1
    with pytest.raises(FileNotFoundError):
        copy_store(tmp_path / "none", tmp_path / "x")
