import threading
from pathlib import Path

from tests.ha_peers import (
    EMPTY,
    FakeFollower,
    FakeSlave,
    MemoryLog,
    Outcomes,
    context_of,
    eventually,
    running_master,
)

from penstock.contracts import CopyOutcome
from penstock_replicate.master.copies import CopyTable
from penstock_replicate.master.waiting import WaitingPuts
from penstock_replicate.wire.frames import Ack, encode


def test_without_copies_a_put_does_not_wait(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with running_master(log, in_sync_replicas=2, timeout_ms=60_000) as master:
        told = Outcomes()
        master.copied(log.put(), told)
        assert told.all == [CopyOutcome.NOT_AVAILABLE]
        assert master.appender_waits


def test_a_slave_that_has_the_bytes_answers_received(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with running_master(log, in_sync_replicas=2) as master, FakeSlave(master) as slave:
        eventually(lambda: master.stats()["in_sync"] == 1)
        told = Outcomes()
        end = log.put()
        master.copied(end, told)
        slave.take_until(end)
        assert told.wait() == [CopyOutcome.RECEIVED]
        # It is there already.
        master.copied(end, told)
        assert told.wait(2)[1] == CopyOutcome.RECEIVED


def test_on_disk_is_said_only_if_enough_copies_say_it(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with (
        running_master(log, in_sync_replicas=3) as master,
        FakeFollower(master) as first,
        FakeFollower(master) as second,
    ):
        for follower in (first, second):
            follower.ask(EMPTY)
        eventually(lambda: master.stats()["in_sync"] == 2)
        for flushed, outcome in ((True, CopyOutcome.ON_DISK), (False, CopyOutcome.RECEIVED)):
            told = Outcomes()
            end = log.put()
            master.copied(end, told)
            first.take_until(end)
            second.take_until(end)
            first.send(encode(Ack(end, end)))
            eventually(lambda end=end: any(copy.received_offset == end for copy in master.copies()))  # type: ignore[misc]
            assert not told.all
            second.send(encode(Ack(end, end if flushed else 0)))
            assert told.wait() == [outcome]


def test_a_copy_that_missed_a_time_out_is_not_waited_for_until_it_has_caught_up(
    tmp_path: Path,
) -> None:
    """In RocketMQ, a slave that hangs makes a queue: each put waits for the whole time-out."""
    log = MemoryLog(tmp_path)
    with running_master(log, in_sync_replicas=2, timeout_ms=150) as master:
        with FakeSlave(master) as slave:
            eventually(lambda: master.stats()["in_sync"] == 1)
            told = Outcomes()
            for _ in range(5):
                master.copied(log.put(), told)
            assert told.wait(5) == [CopyOutcome.LATE] * 5
            assert master.stats()["in_sync"] == 0
            end = log.put()
            master.copied(end, told)
            assert told.all[5:] == [CopyOutcome.NOT_AVAILABLE]
            slave.take_until(end)
            eventually(lambda: master.stats()["in_sync"] == 1)
            master.copied(end, told)
            assert told.wait(7)[6] == CopyOutcome.RECEIVED
        eventually(lambda: master.stats()["in_sync"] == 0)
        assert (master.stats()["late"], master.stats()["not_available"]) == (5, 1)


def test_a_copy_too_far_behind_is_not_in_sync(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with (
        running_master(log, in_sync_replicas=2, behind_bytes_max=5000) as master,
        FakeSlave(master) as slave,
    ):
        eventually(lambda: master.stats()["in_sync"] == 1)
        end = log.put(1000, 10)
        eventually(lambda: master.stats()["in_sync"] == 0)
        slave.take_until(end)
        eventually(lambda: master.stats()["in_sync"] == 1)


def test_closing_tells_all_that_wait(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    told = Outcomes()
    with running_master(log, in_sync_replicas=2, timeout_ms=300) as master, FakeSlave(master):
        eventually(lambda: master.stats()["in_sync"] == 1)
        master.copied(log.put(), told)
        master.close()
        assert told.all == [CopyOutcome.LATE]
        master.copied(log.visible_offset, told)
        assert len(told.all) == 2


def test_puts_of_many_threads_are_each_told_once(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with (
        running_master(log, in_sync_replicas=2, timeout_ms=10_000) as master,
        FakeSlave(master) as slave,
    ):
        eventually(lambda: master.stats()["in_sync"] == 1)
        told, lock = Outcomes(), threading.Lock()

        def put() -> None:
            for _ in range(50):
                with lock:
                    end = log.put()
                master.copied(end, told)

        threads = [threading.Thread(target=put) for _ in range(8)]
        for thread in threads:
            thread.start()
        slave.take_until(8 * 50 * 100)
        for thread in threads:
            thread.join()
        assert told.wait(400) == [CopyOutcome.RECEIVED] * 400


def test_where_no_copy_is_needed_a_put_is_told_at_once(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    told = Outcomes()
    puts = WaitingPuts(CopyTable(log, context_of(tmp_path), 0), 0, 1000, lambda: 0.0)
    assert not puts.add(log.put(), told)
    assert told.all == [CopyOutcome.NOT_AVAILABLE]
