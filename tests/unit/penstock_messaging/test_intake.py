"""The writer takes journals in: offsets rise, refusals become retries once, and what does not count is dropped with a note."""

import errno
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.crash.group_story import GROUP, SETTINGS, TOPIC, retries_of, services, take

from penstock.errors import MessageError, StorageError
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers
from penstock.testing.kit import open_store
from penstock_messaging.groups import intake as module
from penstock_messaging.groups.entries import GROUP_SETTING
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.intake import Intake
from penstock_messaging.groups.journal_cursor import JournalCursor
from penstock_messaging.groups.marks import write_marks
from penstock_messaging.groups.members import Membership
from penstock_messaging.groups.taking import Groups


class Bench:
    """A store, its groups and the service."""

    def __init__(self, store: Store, files: FaultyFiles) -> None:
        self.store = store
        self.files = files
        self.groups: Groups
        self.intake: Intake
        self.groups, self.intake = services(store, files, ManualClock())

    def committed(self, queue: int = 0) -> int | None:
        """Return the group's committed offset."""
        return self.store.committed_offset(GROUP, TOPIC, queue)

    def again(self) -> "Bench":
        """Return another service, as after a kill of the first."""
        return Bench(self.store, self.files)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a store with twenty messages in each of two queues."""
    files = FaultyFiles()
    with open_store(tmp_path / "store", files=files, spawn=ManualWorkers(), **SETTINGS) as store:
        for number in range(40):
            store.put(TOPIC, b"%d" % (number // 2), queue=number % 2)
        yield Bench(store, files)


def test_acknowledgements_raise_the_offset_to_the_lowest_gap(bench: Bench) -> None:
    owned = take(bench.groups)
    owned.ack([0, 1, 5], 0)
    bench.intake.take_all()
    assert bench.committed() == 2
    owned.ack([2, 3, 4], 2)
    bench.intake.take_all()
    assert bench.committed() == 6
    assert bench.groups.position(GROUP, TOPIC, 0) == Position(6)


def test_all_queues_are_committed_in_one_write(bench: Bench) -> None:
    for queue in (0, 1):
        take(bench.groups, queue=queue).ack([0], 0)
    bench.intake.take_all()
    for queue in (0, 1):
        for name in ("g1", "g2"):
            take(bench.groups, queue=queue, group=name)
    bench.files.plan.counts.clear()
    bench.intake.take_all()
    # For each group: marks, consumerOffset.json.bak and consumerOffset.json; for the first group, that its offsets were written.
    assert bench.files.plan.counts["rename"] == 2 * 3 + 1
    assert (bench.committed(0), bench.committed(1)) == (1, 1)


def test_nothing_is_written_when_nothing_is_new(bench: Bench) -> None:
    take(bench.groups).ack([0], 0)
    bench.intake.take_all()
    # Once more, to note that the offset was written.
    bench.intake.take_all()
    bench.files.plan.counts.clear()
    bench.intake.take_all()
    assert bench.files.plan.counts.get("pwrite", 0) == 0


def test_each_refusal_becomes_one_retry_and_counts_as_consumed(bench: Bench) -> None:
    owned = take(bench.groups)
    owned.ack([0, 2], 0)
    owned.nack(1, 2, GROUP_SETTING, 1)
    assert bench.groups.position(GROUP, TOPIC, 0) == Position(1, ((2, 3),), frozenset({1}))
    bench.intake.take_all()
    bench.intake.take_all()
    bench.again().intake.take_all()
    assert retries_of(bench.store) == {"1": 1}
    assert bench.committed() == 3
    (retry,) = bench.store.read("SCHEDULE_TOPIC_XXXX", 1).messages
    assert retry.reconsume_times == 1
    # The owner's new file does not bring it back.
    owned._journal._begin_anew()
    bench.intake.take_all()
    assert retries_of(bench.store) == {"1": 1}


def test_more_refusals_than_one_round_takes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NACKS_MAX", 3)
    monkeypatch.setattr(module, "_COPY_BYTES", 3)
    for queue in (0, 1):
        owned = take(bench.groups, queue=queue)
        for offset in range(8):
            owned.nack(offset, 0, GROUP_SETTING, 0)
    bench.intake.take_all()
    assert retries_of(bench.store) == {str(n): 2 for n in range(8)}
    assert (bench.committed(0), bench.committed(1)) == (8, 8)


CALLS = ["write_marks", "put_copies", "flush", "move_offsets", "done"]


@pytest.mark.parametrize("dies_at", CALLS)
def test_after_a_kill_between_any_two_steps_there_is_one_retry(
    dies_at: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiesError(Exception):
        pass

    owned = take(bench.groups)
    owned.ack([0], 0)
    owned.nack(1, 0, GROUP_SETTING, 0)
    dying = bench.again()
    with monkeypatch.context() as broken:
        if dies_at in ("write_marks", "done"):
            real, calls = write_marks, [0]

            def marks(*given: object) -> None:
                calls[0] += 1
                if calls[0] == 1 + (dies_at == "done"):
                    raise DiesError
                real(*given)  # type: ignore[arg-type] # the same arguments

            broken.setattr(module, "write_marks", marks)
        else:

            def after(*given: object) -> object:
                answer = done(*given)
                if dies_at != "flush" or bench.store.max_offset("SCHEDULE_TOPIC_XXXX", 2):
                    raise DiesError
                return answer

            done = getattr(bench.store, dies_at)
            broken.setattr(bench.store, dies_at, after, raising=False)
        with pytest.raises(DiesError):
            dying.intake.take_all()
    bench.again().intake.take_all()
    assert retries_of(bench.store) == {"1": 1}
    assert bench.committed() == 2


def test_two_groups_may_refuse_the_same_message(bench: Bench) -> None:
    for group in ("g", "h"):
        take(bench.groups, group=group).nack(1, 0, GROUP_SETTING, 0)
    bench.intake.take_all()
    assert retries_of(bench.store) == {"1": 2}


def test_an_offset_that_is_committed_by_hand_counts(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    owned = take(bench.groups)
    owned.ack(list(range(10)), 0)
    bench.intake.take_all()
    bench.store.commit_offset(GROUP, TOPIC, offset=0)
    owned.ack([10], 10)
    with caplog.at_level(logging.WARNING):
        bench.intake.take_all()
    assert "dropped" in caplog.text
    assert bench.committed() == 0
    assert bench.groups.position(GROUP, TOPIC, 0) == Position(0)
    # The old owner's further answers change nothing.
    owned.ack([11], 11)
    bench.intake.take_all()
    assert bench.committed() == 0


def test_a_commit_between_reading_and_writing_is_not_overwritten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(bench.groups).ack(list(range(10)), 0)
    real = bench.store.move_offsets

    def late(moves: object) -> object:
        bench.store.commit_offset(GROUP, TOPIC, offset=17)
        return real(moves)  # type: ignore[arg-type] # the same argument

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "move_offsets", late, raising=False)
        bench.intake.take_all()
    bench.intake.take_all()
    assert bench.committed() == 17
    assert bench.groups.position(GROUP, TOPIC, 0) == Position(17)


def test_a_reset_backward_is_taken_in_and_refusals_before_it_are_retried(bench: Bench) -> None:
    owned = take(bench.groups)
    owned.ack(list(range(10)), 0)
    owned.nack(10, 0, GROUP_SETTING, 10)
    bench.intake.take_all()
    owned.nack(11, 0, GROUP_SETTING, 10)
    owned.reset(4)
    assert bench.groups.position(GROUP, TOPIC, 0) == Position(4)
    bench.intake.take_all()
    assert bench.committed() == 4
    assert retries_of(bench.store) == {"10": 1, "11": 1}
    owned.ack([4, 5], 4)
    bench.intake.take_all()
    assert bench.committed() == 6


def test_what_is_beyond_the_end_of_a_queue_is_dropped(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    owned = take(bench.groups)
    owned.ack([0, 25, 30], 0)
    owned.nack(40, 0, GROUP_SETTING, 0)
    owned.hand_back()
    bench.intake.take_all()
    assert "lost" in caplog.text
    assert (bench.committed(), retries_of(bench.store)) == (1, {})
    assert take(bench.groups).position == Position(1)


def test_an_owner_beyond_the_end_of_a_queue_loses_it(bench: Bench) -> None:
    owned = take(bench.groups)
    owned.ack([0, 30], 0)
    bench.intake.take_all()
    assert bench.committed() == 1
    assert bench.intake._marks[GROUP][TOPIC, 0].life == 1
    owned.hand_back()
    assert take(bench.groups).position == Position(1)


def test_a_refused_message_that_is_gone_is_noted(bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    take(bench.groups).nack(1, 0, GROUP_SETTING, 0)
    nothing = bench.store.read(TOPIC, 0, 20)
    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "read", lambda *_: nothing, raising=False)
        bench.intake.take_all()
    assert "deleted or corrupt" in caplog.text
    assert retries_of(bench.store) == {}


def test_a_retry_that_cannot_be_stored_does_not_hold_up_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = take(bench.groups)
    for offset in range(4):
        owned.nack(offset, 0, GROUP_SETTING, 0)
    real = bench.store.put_copies

    def picky(copies: list[tuple[object, bytes]]) -> object:
        refused = (b"1", b"2") if copies[0][0].topic == "SCHEDULE_TOPIC_XXXX" else (b"2",)  # type: ignore[attr-defined] # a message
        if any(copy[0].body in refused for copy in copies):  # type: ignore[attr-defined] # a message
            raise MessageError("too large")
        return real(copies)  # type: ignore[arg-type] # the same argument

    monkeypatch.setattr(bench.store, "put_copies", picky, raising=False)
    bench.intake.take_all()
    assert "offset 1 of queue orders/0 is a dead letter now" in caplog.text
    assert "offset 2 of queue orders/0 can be stored neither" in caplog.text
    assert retries_of(bench.store) == {"0": 1, "3": 1}
    assert [each.body for each in bench.store.read(f"%DLQ%{GROUP}").messages] == [b"1"]


def test_a_failure_is_logged_once_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(bench.groups).ack([0], 0)

    def fail(_moves: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "move_offsets", fail, raising=False)
        assert bench.intake.step() == bench.intake.step() == module.INTERVAL_S
    assert caplog.text.count("the disk is full") == 1
    bench.intake.step()
    assert bench.committed() == 1


def test_it_rests_until_it_is_woken_where_nobody_is_and_nothing_is_new(bench: Bench) -> None:
    owned = take(bench.groups)
    owned.ack([0], 0)
    # Taken in; then that it was; then nothing is left.
    assert [bench.intake.step() for _ in range(3)] == [module.GAP_S, module.GAP_S, None]
    member = Membership(bench.files, bench.groups.paths(GROUP), TOPIC, 0, {})
    member.join()
    assert bench.intake.step() == module.INTERVAL_S
    member.leave()
    assert bench.intake.step() is None


def test_a_queue_that_cannot_be_taken_in_does_not_hold_up_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One journal that could not be synced kept the acknowledgements of all queues of all groups from brokers."""
    first, second = (take(bench.groups, queue=queue) for queue in (0, 1))
    for owned in (first, second):
        owned.ack([0], 0)
        owned.nack(1, 0, GROUP_SETTING, 1)
    sync = JournalCursor.sync

    def failing(self: JournalCursor) -> None:
        if self._path.name == "0.journal":
            raise OSError(5, "Input/output error")
        sync(self)

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(JournalCursor, "sync", failing)
        bench.intake.take_all()
        bench.intake.take_all()
        for owned in (first, second):
            owned.hand_back()
        # It is tried again although nobody wakes the writer.
        bench.intake.step()
        assert bench.intake.step() == module.INTERVAL_S
    assert caplog.text.count("not taken in yet") == 1
    assert (bench.committed(0), bench.committed(1)) == (None, 2)
    bench.intake.take_all()
    assert (bench.committed(0), bench.committed(1)) == (2, 2)
    assert retries_of(bench.store) == {"1": 2}


def test_a_group_that_cannot_be_taken_in_does_not_hold_up_the_others(bench: Bench) -> None:
    """A folder in place of a group's marks, or a disk error there, stopped the intake of all groups after it."""
    take(bench.groups, group="a").ack([0], 0)
    take(bench.groups, group="b").ack([0, 1], 0)
    marks = bench.groups.paths("a").marks
    marks.mkdir()
    with pytest.raises(OSError, match="regular file"):
        bench.intake.take_all()
    assert bench.store.committed_offset("a", TOPIC, 0) is None
    assert bench.store.committed_offset("b", TOPIC, 0) == 2
    marks.rmdir()
    bench.intake.take_all()
    assert bench.store.committed_offset("a", TOPIC, 0) == 1


@pytest.mark.parametrize("path", [".journal", "marks", "consumerOffset.json"])
@pytest.mark.parametrize(
    "call", ["create", "open", "pwrite", "pwrite_pieces", "sync", "rename", "sync_folder", "resize"]
)
def test_a_full_disk_at_any_write_loses_no_answer_and_makes_no_retry_twice(
    call: str, path: str, bench: Bench
) -> None:
    for step in range(4):
        acked, refused = 2 * step, 2 * step + 1
        owned = take(bench.groups)
        bench.files.plan.fail(call, errno.ENOSPC, path=path, after=step)
        for answer in (
            lambda owned=owned, acked=acked: owned.sync(owned.ack([acked], acked)),
            lambda owned=owned, refused=refused: owned.nack(refused, 0, GROUP_SETTING, refused - 1),
            bench.intake.take_all,
            owned.hand_back,
        ):
            with suppress(StorageError, OSError):
                answer()
        bench.files.plan.heal()
        owned = take(bench.groups)
        if not owned.position.is_done(acked):
            owned.sync(owned.ack([acked], acked))
        if not owned.position.is_done(refused):
            owned.sync(owned.nack(refused, 0, GROUP_SETTING, refused))
        bench.intake.take_all()
        assert bench.committed() == refused + 1
        assert bench.groups.position(GROUP, TOPIC, 0) == Position(refused + 1)
        assert retries_of(bench.store) == {str(n): 1 for n in range(1, refused + 1, 2)}
        owned.hand_back()
    bench.again().intake.take_all()
    assert retries_of(bench.store) == {str(n): 1 for n in (1, 3, 5, 7)}
