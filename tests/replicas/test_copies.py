"""What counts as a copy, for which puts, and since when."""

import json
from random import Random

import pytest
from tests.lanes import SEED, rounds
from tests.replicas.fakes import FakeLog, store_id

from penstock_replicate.copies import SAMPLES_MAX, Copies, Copy

A, B, C = (store_id(number) for number in (10, 11, 12))
HEARTBEAT_MS, TIMEOUT_MS = 1000, 3000


def copies_of(log: FakeLog, needed: int = 1, wait_for: str = "disk") -> Copies:
    return Copies(
        log, needed=needed, wait_for=wait_for, timeout_ms=TIMEOUT_MS, heartbeat_ms=HEARTBEAT_MS, now_ms=0
    )  # fmt: skip


def counted(size: int, needed: int = 1, wait_for: str = "disk") -> tuple[FakeLog, Copies]:
    """Return a log with so many bytes that puts wait for, and its copies."""
    log = FakeLog()
    copies = copies_of(log, needed, wait_for)
    log.put(bytes(size))
    return log, copies


@pytest.mark.parametrize(("wait_for", "reached"), [("disk", 40), ("received", 70)])
def test_a_put_waits_for_what_was_promised(wait_for: str, reached: int) -> None:
    log, copies = counted(100, wait_for=wait_for)
    copies.acked(copies.join(A, "a:1", 0), 70, 40)
    assert (log.reached, log.available) == (reached, True)


def test_a_copy_counts_from_its_first_acknowledgement_until_it_has_left() -> None:
    for size in (0, 100):
        log, copies = counted(size)
        copies.tick(5)
        copy = copies.join(A, "a:1", 0)
        assert (log.reached, log.available) == (0, False)
        copies.acked(copy, size // 2, size // 2)
        assert (log.reached, log.available) == (size // 2, True)
        copies.leave(copy, "the line was cut")
        assert (log.reached, log.available) == (size // 2, False)
        copies.acked(copy, 100, 100)
        assert log.reached == size // 2
        assert copies.status()[0]["last_error"] == "the line was cut"


def test_as_many_copies_as_are_needed_have_it() -> None:
    log, copies = counted(100, needed=2)
    a, b, c = (copies.join(store, "h:1", 0) for store in (A, B, C))
    copies.acked(a, 100, 100)
    assert (log.reached, log.available) == (0, False)
    copies.acked(b, 30, 30)
    assert (log.reached, log.available) == (30, True)
    copies.acked(c, 60, 60)
    assert log.reached == 60
    log, copies = counted(9, needed=0)
    copies.acked(copies.join(A, "a:1", 0), 9, 9)
    assert (log.reached, log.available) == (0, False)


def test_a_copy_that_begins_later_answers_no_earlier_put() -> None:
    """An empty copy that begins at the log's last file answered puts before it."""
    log, copies = counted(6000)
    copies.acked(copies.join(A, "a:1", 4096), 5000, 5000)
    copies.tick(TIMEOUT_MS - 1)
    assert (log.reached, log.available) == (0, False)
    copies.tick(TIMEOUT_MS)
    assert log.reached == 5000
    # Before its begin, nobody waits for anything.
    log = FakeLog(bytes(4096), min_offset=4096)
    copies = copies_of(log)
    log.put(bytes(10))
    copies.acked(copies.join(A, "a:1", 4096), 4106, 4106)
    assert log.reached == 4106


def test_after_a_missed_put_a_copy_is_in_sync_when_it_has_that_put() -> None:
    log, copies = counted(100)
    copy = copies.join(A, "a:1", 0)
    copies.acked(copy, 90, 90)
    told = [log.available]
    log.missed_offset = 100
    copies.refresh()
    told.append(log.available)
    for end in (99, 100):
        copies.acked(copy, end, end)
        told.append(log.available)
    assert told == [True, False, False, True]


def test_a_copy_catches_up_under_a_load_that_never_rests() -> None:
    """It had to have all but a fixed number of bytes, so that it never was in sync as long as the load lasted."""
    log, copies = counted(0)
    copy = copies.join(A, "a:1", 0)
    for second in range(1, 20):
        before = log.visible_offset
        log.put(bytes(1 << 20))
        copies.acked(copy, before, before)
        copies.tick(second * HEARTBEAT_MS)
        assert log.available
    # It has nothing of the last two seconds.
    log.put(bytes(1 << 20))
    copies.tick(20 * HEARTBEAT_MS)
    assert not log.available


def test_lag_is_told_in_bytes_and_in_time_for_up_to_an_hour() -> None:
    log, copies = counted(100)
    copies.acked(copies.join(A, "a:1", 0), 100, 0)
    assert [copies.status()[0][name] for name in ("lag_bytes", "lag_ms")] == [0, 0]
    log.put(bytes(700))
    for second in range(1, 2 * SAMPLES_MAX):
        copies.tick(second * HEARTBEAT_MS)
        lag_ms = min(second - 1, SAMPLES_MAX - 1) * HEARTBEAT_MS
        assert [copies.status()[0][name] for name in ("lag_bytes", "lag_ms")] == [700, lag_ms]


def test_those_that_ended_last_stay_listed_with_their_reasons() -> None:
    _, copies = counted(0)
    a = copies.join(A, "a:1", 0)
    for number in range(100, 120):
        copies.refuse(store_id(number), "h:1", f"refused {number}")
    copies.refuse(A, "h:1", "it is connected otherwise")
    copies.leave(a, "it was last")
    listed = json.loads(json.dumps(copies.status()))
    assert [one["store"] for one in listed][:-1] == [store_id(number) for number in range(113, 120)]
    assert {one["last_error"] for one in listed} >= {"it was last", "refused 119"}
    assert len(listed) == 8


def test_no_put_that_waits_is_answered_by_fewer_stores_than_it_needs() -> None:
    """Four stores come, acknowledge, come again while an earlier connection of theirs lasts, and go, in any order."""
    answered = 0
    for number in range(rounds(gate=300, night=100_000)):
        chance, log, now_ms = Random(f"{SEED} {number}"), FakeLog(), 0
        needed = chance.choice((1, 2, 3))
        copies = copies_of(log, needed)
        begins, durable = dict[str, int](), dict[str, int]()
        waiting, lines = list[tuple[int, int, int]](), list[tuple[str, Copy]]()
        for _ in range(80):
            match chance.choice(
                ("put", "put", "join", "acked", "acked", "acked", "leave", "tick", "missed")
            ):
                case "put":
                    start = log.visible_offset
                    log.put(bytes(chance.randrange(1, 100)))
                    waiting.append((now_ms, start, log.visible_offset))
                case "join":
                    store = store_id(chance.randrange(4))
                    begin = begins.setdefault(store, chance.choice((0, log.visible_offset)))
                    lines.append((store, copies.join(store, "h:1", begin)))
                case "acked" if lines:
                    store, copy = chance.choice(lines)
                    last = max(durable.get(store, 0), begins[store])
                    durable[store] = chance.randint(last, log.visible_offset)
                    copies.acked(copy, log.visible_offset, durable[store])
                case "leave" if lines:
                    copies.leave(chance.choice(lines)[1], "the line was cut")
                case "tick":
                    now_ms += chance.choice((10, HEARTBEAT_MS, TIMEOUT_MS))
                    copies.tick(now_ms)
                case "missed":
                    log.missed_offset = log.visible_offset
                    copies.look()
            waiting = [each for each in waiting if now_ms - each[0] < TIMEOUT_MS]
            for put in [each for each in waiting if each[2] <= log.reached]:
                _, start, end = put
                having = [s for s, at in durable.items() if at >= end and begins[s] <= start]
                assert len(having) >= needed, f"PENSTOCK_SEED={SEED}, {number}"
                waiting.remove(put)
                answered += 1
    assert answered > 100
