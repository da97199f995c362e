"""What the sink's protocol takes, refuses and leaves alone: decisions, staged files, the ledger, other writers."""

import contextlib
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from tests.spark.sinkstory import (
    APP,
    ENCODING,
    REGISTRY,
    SETTINGS,
    Place,
    World,
    encoded,
)

import penstock
from penstock.config import sources
from penstock.config.sources import build_config
from penstock.errors import (
    CorruptionError,
    MessageError,
    StorageError,
    StoreLockedError,
    TopicError,
    UnknownTopicError,
)
from penstock.files import Files, write_line
from penstock.staged import Encoder
from penstock.store.open import Opener
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.kit import InlineWorkers
from penstock.testing.platter import Survival
from penstock_spark import StaleCheckpointError
from penstock_spark.sink.commit import (
    FOLDER,
    BatchProgress,
    Decision,
    Ledger,
    Part,
    Patience,
    ShardProgress,
    SinkCommitter,
)
from penstock_spark.sink.rows import Stager

pytestmark = pytest.mark.usefixtures("quiet")


def world(shards: int = 1) -> World:
    place = Place(shards)
    disk = SimulatedDisk(clock=ManualClock())
    disk.make_folder(place.root)
    made = World(disk, place)
    for path in place.stores:
        made.open(path).close()
    made.committer().prepare()
    return made


def dying(world: World, pieces: int) -> Callable[[Path], Any]:
    """Return what opens stores that fail after so many pieces of a batch."""

    def opened(path: Path) -> Any:
        store = world.open_busy(path)
        put, count = store.lowlevel.put_staged, iter(range(pieces))

        def put_some(*args: Any, **more: Any) -> int:
            if next(count, None) is None:
                raise OSError(5, "the test's")
            return put(*args, **more)

        store.lowlevel.put_staged = put_some  # type: ignore[method-assign]
        return store

    return opened


def test_rows_are_there_once_if_messages_of_others_came_between_them() -> None:
    """The sink's own store delivers delayed messages while a batch is appended."""
    one = world()
    parts = one.stage(0, 0)
    for pieces in (3, 2):
        with pytest.raises(OSError, match="the test's"):
            one.committer(dying(one, pieces)).commit(APP, 0, parts)
    assert not one.run(0, 1)
    with one.open(one.place.root) as store:
        assert store.max_offset("between", 0) == 8
    assert one.wrong(1) == ""


def test_a_batch_is_taken_once() -> None:
    one = world()
    assert one.run(0, 0)
    assert not one.run(0, 1)
    assert one.run(1, 0)
    assert not one.run(0, 2)
    assert one.wrong(2) == ""


def test_a_stream_that_repeats_another_than_its_last_batch_is_an_error() -> None:
    """A checkpoint that was restored from a copy: its next batches have old numbers, and other rows."""
    one = world()

    def commit(batch: int, parts: list[Part]) -> bool:
        return one.committer().commit(APP, batch, parts, is_stream=True)

    assert commit(0, one.stage(0, 0))
    assert commit(1, one.stage(1, 0))
    assert not commit(1, one.stage(1, 1))
    for batch, parts, rows in [
        (0, one.stage(0, 1), 14), (0, [], 0), (1, one.stage(1, 2)[:1], 7), (1, [], 0),
    ]:  # fmt: skip
        with pytest.raises(
            StaleCheckpointError, match="a new checkpoint and a new txnAppId"
        ) as raised:
            commit(batch, parts)
        error = raised.value
        assert (error.app, error.batch, error.rows) == (APP, batch, rows)
        assert (error.last, error.last_rows) == (1, 14)
        one.committer().abandon(parts)
    assert one.wrong(2) == ""
    assert commit(2, [])
    assert not commit(2, [])
    assert not one.committer().ledger.has_decision()
    # A batch query's version may be any that is not greater.
    assert not one.run(0, 3)


def test_the_first_decision_wins() -> None:
    """A driver decided and died; the one that comes next brings other files for the same batch."""
    one = world()
    first = one.committer(dying(one, 0))
    with pytest.raises(OSError, match="the test's"):
        first.commit(APP, 0, one.stage(0, 0))
    decided = first.ledger.decision()
    assert not one.run(0, 1)
    assert decided is not None
    with one.open(one.place.root) as store:
        marks = {message.prepared_offset for message in store.scan("t")}
    assert min(marks) == decided.mark
    assert one.wrong(1) == ""


def test_another_application_finishes_what_was_decided() -> None:
    one = world(2)
    first = one.committer(dying(one, 0))
    with pytest.raises(OSError, match="the test's"):
        first.commit(APP, 0, one.stage(0, 0))
    # A failed batch is given up by Spark: what is decided must stay.
    decided = first.ledger.decision()
    assert decided is not None
    one.committer().abandon(decided.parts)
    one.committer().commit("other app", 0, [])
    assert one.wrong(1) == ""


def test_what_was_not_decided_is_given_up() -> None:
    one = world()
    parts = one.stage(0, 0)
    one.committer().abandon(parts)
    assert not one.disk.entries(one.committer().ledger.staging)
    one.committer().abandon(parts)


def test_while_somebody_commits_nothing_is_given_up_nor_committed() -> None:
    one = world()
    parts = one.stage(0, 0)
    lock = one.disk.lock(one.committer().ledger.lock)
    assert lock is not None
    one.committer().abandon(parts)
    assert len(one.disk.entries(one.committer().ledger.staging)) == 2
    with pytest.raises(StoreLockedError, match="another commit"):
        one.committer().commit(APP, 0, parts)
    lock.release()
    assert one.committer().commit(APP, 0, parts)


def test_a_store_that_another_writes_is_waited_for() -> None:
    one = world()
    producer = one.open(one.place.root)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 5:
            producer.close()

    patience = Patience(timeout_s=1, now_s=lambda: 0.1 * len(slept), sleep_s=sleep)
    committer = one.committer(patience=patience)
    assert committer.commit(APP, 0, one.stage(0, 0))
    assert len(slept) == 5
    producer = one.open(one.place.root)
    with pytest.raises(StoreLockedError, match="process"):
        one.run(1, 0)
    # Not decided while it could not be done, so it may be tried again, or not.
    assert not one.committer().ledger.has_decision()
    producer.close()
    assert one.run(1, 1)
    assert one.wrong(2) == ""


def test_a_producer_that_comes_between_decision_and_append_is_waited_for_as_well() -> None:
    """The sink keeps few stores of a dataset open meanwhile: here the first."""
    one = world(2)
    committer = one.committer()
    decide, producers = committer.ledger.decide, []

    def come_between(decision: Decision) -> None:
        decide(decision)
        producers.append(one.open(one.place.stores[1]))

    committer.ledger.decide = come_between  # type: ignore[method-assign]
    with pytest.raises(StoreLockedError) as raised:
        committer.commit(APP, 0, one.stage(0, 0))
    assert "Do not write it again" in raised.value.__notes__[0]
    producers[0].close()
    assert not one.run(0, 1)
    assert one.wrong(1) == ""


REFUSALS: dict[str, tuple[str, Any]] = {
    "fewer queues": ("topic 't' is refused: the topic has 1 queues", {"queues": 1}),
    "no permission": ("perm 4 lacks 2, write", {"queues": 2, "perm": 4}),
}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("why", REFUSALS)
def test_a_batch_that_a_topic_refuses_is_not_decided_and_blocks_nobody(
    why: str, shards: int
) -> None:
    match, options = REFUSALS[why]
    one = world(shards)
    last = one.place.stores[-1]
    with one.open(last) as store:
        store.create_topic("t", **options)
    with pytest.raises(MessageError, match=match) as raised:
        one.run(0, 0)
    assert str(last) in raised.value.__notes__[0]
    assert "write the batch again" in raised.value.__notes__[0]
    assert not one.committer().ledger.has_decision()
    for path in one.place.stores:
        with one.open(path) as store:
            assert not any(each.max_offset for each in store.lowlevel.bounds())
    # Nor are others kept from writing.
    assert one.committer().commit("other", 0, [])
    with one.open(last) as store:
        store.alter_topic("t", queues=2, perm=6)
    assert one.run(0, 1)
    assert one.wrong(1) == ""


def test_a_topic_that_refuses_a_decided_batch_is_named_with_the_ways_out() -> None:
    """It was changed after the decision: by hand, while the sink was down."""
    one = world()
    with pytest.raises(OSError, match="the test's"):
        one.committer(dying(one, 2)).commit(APP, 0, one.stage(0, 0))
    with one.open(one.place.root) as store:
        store.alter_topic("t", perm=4)
    with pytest.raises(MessageError, match="lacks 2, write") as raised:
        one.committer().commit("other", 0, [])
    (note,) = raised.value.__notes__
    assert f"batch 0 of {APP!r}" in note
    assert "`penstock topic alter`" in note
    assert "Cleaning up" in note
    with one.open(one.place.root) as store:
        store.alter_topic("t", perm=6)
    assert one.committer().commit("other", 0, [])
    assert one.wrong(1) == ""


def test_topics_that_messages_may_not_create_are_refused_before_the_decision(
    tmp_path: Path,
) -> None:
    def open_here(path: Path) -> Any:
        settings = {**SETTINGS, "extensions.messaging.auto_create_topics": False}
        return penstock.open(path, environ={}, **settings)

    open_here(tmp_path).close()
    committer = SinkCommitter(
        tmp_path, [tmp_path], open_here, files=Files(), patience=Patience(timeout_s=0)
    )
    committer.prepare()
    with pytest.raises(UnknownTopicError, match="there is no topic 't'"):
        committer.commit(APP, 0, stage_many(committer, "a", 1))
    assert not committer.ledger.has_decision()


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"]
)
def test_a_task_refuses_topics_that_are_reserved(topic: str) -> None:
    rows = Encoder(ENCODING).encode(pa.table({"topic": [topic], "queue": [0], "body": [b"x"]}))
    stager = Stager(SimulatedDisk(), Path("/nowhere"), "x.staged", 0, ENCODING)
    with pytest.raises(TopicError, match="reserves that name"):
        stager.put(rows, 0)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_with_sync_readers_see_only_what_a_power_cut_leaves(flush: str) -> None:
    """Without it they see rows while these are appended: a power cut takes them away until they come again."""
    one = world()
    settings = {**SETTINGS, "flush": flush}
    built = build_config(sources.gather(None, {}, settings), REGISTRY)
    root, disk = one.place.root, one.disk

    def bounds(disk: SimulatedDisk) -> list[tuple[int, int]]:
        opener = Opener(root, built, REGISTRY, disk, disk.clock, InlineWorkers())
        return [(b.queue, b.max_offset) for b in opener.open_for_reading().lowlevel.bounds()]

    seen = []

    def watching(path: Path) -> Any:
        store = Opener(path, built, REGISTRY, disk, disk.clock, InlineWorkers()).open_for_writing()
        put = store.lowlevel.put_staged

        def put_and_look(*args: Any, **more: Any) -> int:
            end = put(*args, **more)
            cut = SimulatedDisk.after(
                disk.image(), Survival.NONE, random.Random(1), clock=ManualClock(1_700_000_100_000)
            )
            World(cut, one.place).open(root).close()
            seen.append((bounds(disk), bounds(cut)))
            return end

        store.lowlevel.put_staged = put_and_look  # type: ignore[method-assign]
        return store

    committer = one.committer(watching)
    assert committer.commit(APP, 0, one.stage(0, 0))
    assert len(seen) == 8
    is_kept = all(dict(before).items() <= dict(left).items() for before, left in seen)
    assert is_kept == (flush == "sync")


def test_a_task_that_does_not_see_the_folder_says_so() -> None:
    stager = Stager(SimulatedDisk(), Path("/elsewhere"), "x.staged", 0, ENCODING)
    with pytest.raises(StorageError, match="driver and executors"):
        stager.put(encoded(0, 0, 0), 0)


def test_a_staged_file_that_is_gone_or_damaged_stops_a_batch_before_it_is_decided() -> None:
    one = world()
    staging = one.committer().ledger.staging
    parts = one.stage(0, 0)
    one.disk.remove(staging / parts[1].name)
    with pytest.raises(StorageError, match="is gone"):
        one.committer().commit(APP, 0, parts)
    parts = one.stage(0, 1)
    file = one.disk.open(staging / parts[0].name, writable=True)
    file.pwrite(b"x", 300)
    file.close()
    with pytest.raises(CorruptionError, match="CRC"):
        one.committer().commit(APP, 0, parts)
    parts = one.stage(0, 2)
    with pytest.raises(CorruptionError, match="rows by shard"):
        one.committer().commit(APP, 0, [attrs.evolve(parts[0], rows=((0, 6),)), parts[1]])
    assert not one.committer().ledger.has_decision()
    assert one.run(0, 3)
    one.committer().collect(1 << 62)
    assert one.wrong(1) == ""


def test_orphans_go_by_age_and_decided_files_never() -> None:
    one = world()
    committer = one.committer()
    old = one.stage(0, 0)
    clock = one.disk.clock
    assert isinstance(clock, ManualClock)
    clock.now_ms += 1000
    limit = one.disk.now_ns()
    young = one.stage(0, 1)
    committer.ledger.decide(Decision(APP, 0, 1 << 62, (old[0],)))
    assert committer.collect(limit) == 1
    left = {entry.name for entry in one.disk.entries(committer.ledger.staging)}
    assert left == {old[0].name, young[0].name, young[1].name}


class Few(Files):
    """Files of a process that may have few descriptors, which counts those of staged files."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    @property
    def descriptors_max(self) -> int:
        return self.most


def open_staged(folder: Path) -> int:
    links = []
    for link in Path("/proc/self/fd").iterdir():
        # Another thread may close one meanwhile.
        with contextlib.suppress(FileNotFoundError):
            links.append(str(link.readlink()))
    return sum(link.startswith(str(folder)) for link in links)


def stage_many(committer: SinkCommitter, name: str, tasks: int) -> list[Part]:
    found = []
    for task in range(tasks):
        staging = committer.ledger.staging
        stager = Stager(Files(), staging, f"{name}{task:03d}.staged", task, ENCODING)
        stager.put(encoded(task, 0, 0), 0)
        part = stager.finish()
        assert part is not None
        found.append(part)
    return found


@pytest.mark.parametrize("most", [40, 1 << 20])
def test_a_commit_of_many_tasks_holds_few_descriptors(tmp_path: Path, most: int) -> None:
    """One for each staged file ran out where a batch had as many tasks as a process may open files."""
    tasks = 150 if most > 1000 else 30
    sizes = {**SETTINGS, "geometry.segment_bytes": 1 << 16}

    def open_here(path: Path) -> Any:
        store = penstock.open(path, environ={}, **sizes)
        put = store.lowlevel.put_staged

        def put_and_count(*args: Any, **more: Any) -> int:
            held.append(open_staged(tmp_path / FOLDER / "staging"))
            return put(*args, **more)

        store.lowlevel.put_staged = put_and_count  # type: ignore[method-assign]
        return store

    held: list[int] = []
    open_here(tmp_path).close()
    committer = SinkCommitter(tmp_path, [tmp_path], open_here, files=Few(most), patience=Patience(timeout_s=0), threads=4)  # fmt: skip
    committer.prepare()
    assert committer.commit(APP, 0, stage_many(committer, "a", tasks))
    assert max(held) <= min(most // 4, 128) + 1
    with penstock.open(tmp_path, read_only=True) as store:
        bodies = [message.body for message in store.scan("t", queue=0)]
    assert [body.split(b":")[0] for body in bodies] == [b"%d" % task for task in range(tasks)]
    # One that is damaged is found before anything is decided, held or not.
    more = stage_many(committer, "b", tasks)
    last = committer.ledger.staging / more[-1].name
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CorruptionError):
        committer.commit(APP, 1, more)
    assert not committer.ledger.has_decision()


def test_what_cannot_be_tidied_up_fails_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)
    one = world()
    one.disk.plan.fail("remove", path="staging/")
    assert one.run(0, 0)
    # Nor one that is there already.
    assert not one.run(0, 1)
    assert caplog.text.count("staged files are left") == 2
    one.disk.plan.rules.clear()
    assert one.wrong(1) == ""


def test_an_empty_batch_is_noted() -> None:
    """One that was written empty, and is asked for again with rows, was there already."""
    one = world()
    assert one.committer().commit(APP, 3, [])
    assert not one.committer().commit(APP, 3, [])
    assert not one.run(2, 0)
    assert not one.disk.entries(one.committer().ledger.staging)
    assert one.committer().ledger.last_batch(APP) == 3
    with one.open(one.place.root) as store:
        assert not store.topics()
    # A save that is only itself is never asked for again.
    assert one.committer().commit("alone", 0, [], is_alone=True)
    assert one.committer().ledger.last_batch("alone") == -1


def test_two_roots_may_share_a_store() -> None:
    """A shard is written by its dataset, and by itself: the one's progress is not the other's."""
    whole = world(2)
    with pytest.raises(OSError, match="the test's"):
        whole.committer(dying(whole, 2)).commit(APP, 0, whole.stage(0, 0))
    shard = whole.place.stores[0]
    alone = SinkCommitter(
        shard, [shard], whole.open, files=whole.disk, patience=Patience(timeout_s=0)
    )
    alone.prepare()
    stager = Stager(whole.disk, alone.ledger.staging, "mine.staged", 0, ENCODING)
    stager.put(encoded(5, 0, 0), 0)
    part = stager.finish()
    assert part is not None
    assert alone.commit("alone", 0, [part])
    assert not whole.run(0, 1)
    with whole.open(shard) as store:
        bodies = [message.body for queue in range(2) for message in store.scan("t", queue=queue)]
    assert len(bodies) == len(set(bodies)) == 2 * 4 + 2


def test_a_log_that_was_cut_is_not_counted(tmp_path: Path) -> None:
    """A store that was put back from an older copy: what the progress says cannot be looked up."""
    one = world()
    one.run(0, 0)
    committer = one.committer()
    decision = Decision(APP, 1, 1 << 62, tuple(one.stage(1, 0)))
    committer.ledger.decide(decision)
    progress = ShardProgress(one.disk, one.place.root, is_own=True)
    progress.write(BatchProgress(1 << 62, 1 << 40, 0, is_complete=False))
    with pytest.raises(StorageError, match="progress-store"):
        one.run(1, 1)
    one.disk.remove(progress.path)
    assert not one.run(1, 2)
    assert one.wrong(2) == ""


@pytest.mark.parametrize("name", ["decision", "progress-store", "ledger"])
def test_small_files_are_not_believed_when_damaged(name: str, tmp_path: Path) -> None:
    files = Files()
    ledger = Ledger(files, tmp_path)
    ledger.make()
    progress = ShardProgress(files, tmp_path, is_own=True)
    decision = Decision("app", 3, 1 << 62, (Part("a.staged", 0, ((0, 5),)),))
    ledger.decide(decision)
    ledger.note_batch(decision)
    progress.write(BatchProgress(1 << 62, 5, 1, is_complete=False))
    assert ledger.decision() == decision
    assert ledger.last_batch("app") == 3
    folder = tmp_path / FOLDER
    path = next((folder / "ledger").iterdir()) if name == "ledger" else folder / name
    data = path.read_bytes()
    read: Callable[[], Any] = {
        "decision": ledger.decision, "progress-store": lambda: progress.read(1 << 62),
        "ledger": lambda: ledger.last_batch("app"),
    }[name]  # fmt: skip
    for at in range(len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            read()
        path.write_bytes(data[:at])
        with pytest.raises(CorruptionError):
            read()


@pytest.mark.parametrize(
    "facts",
    [
        {}, {"app": "a"}, {"app": "a", "batch": -1, "mark": 1 << 62, "alone": False, "parts": []},
        {"app": "a", "batch": 0, "mark": 5, "alone": False, "parts": []},
        {"app": "a", "batch": 0, "mark": 1 << 62, "alone": False, "parts": [["../x", 0, [[0, 1]]]]},
        {"app": "a", "batch": 0, "mark": 1 << 62, "alone": False, "parts": [["x", 0, [[0, 1.5]]]]},
        {"app": "a", "batch": 0, "mark": 1 << 62, "alone": False, "parts": 7},
        {"app": "a", "batch": True, "mark": 1 << 62, "alone": False, "parts": []},
    ],
)  # fmt: skip
def test_a_decision_that_cannot_be_is_damage(facts: dict[str, Any], tmp_path: Path) -> None:
    ledger = Ledger(Files(), tmp_path)
    ledger.make()
    write_line(Files(), tmp_path / FOLDER / "decision", facts)
    with pytest.raises(CorruptionError):
        ledger.decision()
