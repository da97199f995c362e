from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Message, MessageError, Store
from penstock.testing import FaultyFiles, KilledError, ManualClock, ManualWorkers, open_store
from penstock.testing.kit import copy_store
from penstock_messaging.properties_text import stored_text
from penstock_messaging.retries.copies import Origin, origin, retry_copy
from penstock_messaging.retries.dead_letters import (
    REPLAY_GROUP,
    Replayed,
    letters,
    queues,
    replay,
    replay_start,
    replayed_copy,
)

DLQ, RETRY = "%DLQ%billing", "%RETRY%billing"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store", clock=ManualClock(), spawn=ManualWorkers()) as opened:
        yield opened


def give_up(store: Store, count: int, *, queue: int = 0, group: str = "billing") -> None:
    """Put messages that a group gives up at once."""
    for number in range(count):
        receipt = store.put(
            "orders",
            b"%d" % number,
            queue=queue,
            tag="t",
            keys=["k"],
            properties={"a": "b"},
            born_time_ms=7,
        )
        made = retry_copy(store.at(receipt.log_offset), group, level=-1)
        assert made is not None
        store.put_copies([made])


def done(store: Store, **options: Any) -> list[tuple[int, str, int, str]]:
    found: list[Replayed] = []
    count = replay(store, "billing", on_batch=found.extend, **options)
    assert count == sum(not each.reason for each in found)
    return [(each.offset, each.topic, each.queue, each.reason) for each in found]


def test_groups_with_dead_letters_are_listed(store: Store) -> None:
    assert queues(store) == []
    give_up(store, 3)
    give_up(store, 1, group="audit")
    time = store.read(DLQ).messages[0].store_time_ms
    replay(store, "billing", limit=2)
    assert [tuple(each) for each in queues(store)] == [
        ("audit", 1, 1, time, time), ("billing", 3, 1, time, time),
    ]  # fmt: skip
    assert [m.body for m in letters(store, "billing", 1)] == [b"1", b"2"]


def test_a_replay_to_the_group_begins_the_retries_again(store: Store) -> None:
    give_up(store, 1, queue=2)
    first = store.read("orders", 2).messages[0]
    assert done(store) == [(0, RETRY, 0, "")]
    copy = store.read(RETRY).messages[0]
    assert (copy.body, copy.tag, copy.keys, copy.born_time_ms) == (b"0", "t", ("k",), 7)
    assert origin(copy) == Origin(first.message_id, 0)
    assert copy.properties == {
        "a": "b",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": first.message_id,
    }


def test_a_replay_to_the_topic_is_the_message_as_it_was(store: Store) -> None:
    give_up(store, 1, queue=2)
    assert done(store, to_topic=True) == [(0, "orders", 2, "")]
    first, copy = store.read("orders", 2).messages
    assert stored_text(first) == stored_text(copy)
    assert (copy.body, copy.reconsume_times, copy.flag) == (b"0", 0, first.flag)


def test_a_second_replay_continues_and_the_dead_letters_stay(store: Store) -> None:
    give_up(store, 3)
    assert [each[0] for each in done(store, limit=2)] == [0, 1]
    assert [each[0] for each in done(store)] == [2]
    assert done(store) == []
    assert replay_start(store, "billing") == 3
    assert store.committed_offset(REPLAY_GROUP, DLQ) == 3
    assert [m.body for m in store.scan(DLQ)] == [b"0", b"1", b"2"]
    assert [each[0] for each in done(store, start=1)] == [1, 2]


def test_a_dry_run_changes_nothing(store: Store) -> None:
    give_up(store, 2)
    before = store.stats()["log_end_offset"]
    assert [each[0] for each in done(store, dry_run=True)] == [0, 1]
    assert store.stats()["log_end_offset"] == before
    assert replay_start(store, "billing") == 0


def test_more_than_a_batch_is_replayed_in_order(store: Store) -> None:
    give_up(store, 250)
    assert len(done(store)) == 250
    assert [m.body for m in store.scan(RETRY)] == [b"%d" % n for n in range(250)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "does not say"),
        (b"RETRY_TOPIC\x01a/b\x02", "'/'"),
        (b"RETRY_TOPIC\x01\xff\x00\x02", "control"),
    ],
)
def test_a_letter_that_cannot_be_put_back_does_not_hold_up_the_others(
    store: Store, text: bytes, reason: str
) -> None:
    give_up(store, 1)
    store.put_copies([(Message(DLQ, b"odd"), text)])
    give_up(store, 1)
    with pytest.raises(MessageError, match=reason):
        replayed_copy(store.read(DLQ, 0, 1).messages[0], "billing", to_topic=True)
    found = done(store, to_topic=True)
    assert [(each[0], each[1]) for each in found] == [(0, "orders"), (1, ""), (2, "orders")]
    assert reason in found[1][3]


def test_a_group_without_dead_letters_has_nothing_to_replay(store: Store) -> None:
    assert done(store) == []
    assert [*letters(store, "billing")] == []


@pytest.mark.slow
def test_a_killed_replay_goes_on_and_repeats_at_most_its_last_batch(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for point in range(1, 200):
        base = root.with_name(f"store-{point}")
        with open_store(base, spawn=ManualWorkers()) as store:
            give_up(store, 150)
        files = FaultyFiles()
        killed = open_store(base, files=files, spawn=ManualWorkers())
        files.plan.die_at(point)
        try:
            replay(killed, "billing")
        except KilledError:
            pass
        else:
            files.plan.heal()
            killed.close()
            break
        copy = copy_store(base, base.with_name(f"copy-{point}"))
        with open_store(copy, spawn=ManualWorkers()) as store:
            replay(store, "billing")
            found = [int(m.body) for m in store.scan(RETRY)]
            assert sorted(set(found)) == [*range(150)]
            assert len(found) <= 250
    else:
        pytest.fail("the replay never ended")
    assert point > 5
