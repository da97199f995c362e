"""Consume queues against the log: each difference is a finding at its entry, and none else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.penstock_index.test_consume_queue import filled

from penstock.contracts import NO_HISTORY, Finding
from penstock.files import Files
from penstock.testing import WrittenLog, make_context
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions
from penstock_index.queue_check import QueueChecker
from penstock_index.queue_names import QueueNames

Change = Callable[[bytearray], None]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 300)


def findings(log: WrittenLog, root: Path) -> list[Finding]:
    index = ConsumeQueueDispatcher(ConsumeQueueOptions(), make_context(root, read_only=True))
    names = QueueNames(Files(), root / "consumequeue", read_only=True)
    checker = QueueChecker(index, names, NO_HISTORY)
    found = list(checker.start())
    for batch in log.batches():
        found += checker.batch(batch)
    return found + list(checker.finish(log.end_offset))


def changed(log: WrittenLog, root: Path, change: Change) -> list[Finding]:
    filled(log, root).flush()
    (path,) = (root / "consumequeue" / "topic-0" / "0").iterdir()
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return findings(log, root)


def test_queues_as_they_should_be_have_no_finding(log: WrittenLog, tmp_path: Path) -> None:
    assert changed(log, tmp_path, lambda data: None) == []


def test_another_tag_code_or_size_is_told_at_its_entry(log: WrittenLog, tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        data[20 * 3 + 19] ^= 1
        data[20 * 5 + 11] ^= 1

    found = changed(log, tmp_path, change)
    assert [each.position for each in found] == [60, 100]
    assert "another tag code" in found[0].text
    assert "queue topic-0/0 offset 5: the entry has another record, or none" in found[1].text


def test_an_entry_that_leads_elsewhere_is_told(log: WrittenLog, tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        data[20 * 3 + 7] ^= 1

    found = changed(log, tmp_path, change)
    assert {each.position for each in found} == {60}


def test_entries_that_are_missing_at_the_end_are_counted(log: WrittenLog, tmp_path: Path) -> None:  # fmt: skip
    def change(data: bytearray) -> None:
        data[20 * 40 :] = bytes(len(data) - 20 * 40)

    found = changed(log, tmp_path, change)
    texts = [each.text.partition(": ")[2] for each in found]
    assert texts == [f"{count} entries are missing from here on" for count in (4, 6)], (
        "a batch each"
    )


def test_what_a_part_has_seen_goes_to_the_one_that_ends(log: WrittenLog, tmp_path: Path) -> None:
    filled(log, tmp_path).flush()
    index = ConsumeQueueDispatcher(ConsumeQueueOptions(), make_context(tmp_path, read_only=True))
    names = QueueNames(Files(), tmp_path / "consumequeue", read_only=True)
    part, whole = (QueueChecker(index, names, NO_HISTORY) for _ in range(2))
    for batch in log.batches():
        assert list(part.batch(batch)) == []
    whole.take(part.seen())
    assert list(whole.finish(log.end_offset)) == []
