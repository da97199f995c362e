"""Messages that retention takes between a job's plan and its reading: named or counted, never passed over silently."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.job_stores import SIZES as THEIRS
from tests.spark.job_stores import Sink

import penstock
from penstock import Message
from penstock.durability.progress import Progress
from penstock.files import Files
from penstock.testing import ManualClock
from penstock_spark.errors import DataLossError
from penstock_spark.export_folder import Exported
from penstock_spark.jobs import compact, replay
from penstock_spark.jobs.compact import keys_of
from penstock_spark.jobs.messages import messages_of
from penstock_spark.jobs.replay import Pace
from penstock_spark.jobs.tasks import slices_of, still_there
from penstock_spark.stores import StoreSpan

# A segment that is being summed up cannot go.
SIZES: dict[str, Any] = {**THEIRS, "scrub.digests": False}
COUNT = 600
NAMES = ("topic", "offset", "value")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a store of several segments, of one queue."""
    with penstock.open(tmp_path / "source", environ={}, **SIZES) as store:
        for n in range(COUNT):
            store.put("t", b"x" * 500, queue=0, keys=[f"k{n}"])
    return tmp_path / "source"


def lose(root: Path, segments: int = 2) -> int:
    """Let retention take segments; returns how many messages went."""
    with penstock.open(root, environ={}, **SIZES) as store:
        store.discard_before(log_offset=segments * 64 * 1024)
        gone = store.min_offset("t", 0)
    assert 0 < gone < COUNT
    return gone


def test_what_is_gone_of_a_slice_is_named_or_counted(source: Path) -> None:
    slices = slices_of([source], ["t"], 100)
    assert still_there(slices, skips=False) == (slices, 0)
    gone = lose(source)
    with pytest.raises(DataLossError, match=r"\[0, 100\) of queue 0 of topic 't' .* \(--skip-lost"):
        still_there(slices, skips=False)
    left, lost = still_there(slices, skips=True)
    assert lost == gone
    assert left[0].start == gone
    assert sum(each.stop - each.start for each in left) == COUNT - gone
    # A store that was made anew, or a topic that is gone.
    other = [
        StoreSpan(str(source), "t", 0, COUNT - 5, COUNT + 5),
        StoreSpan(str(source), "u", 0, 0, 3),
    ]
    assert still_there(other, skips=True) == ([other[0]._replace(stop=COUNT)], 8)
    with pytest.raises(DataLossError, match=r"\[600, 605\)"):
        still_there(other, skips=False)


def test_a_plan_has_only_what_was_published(source: Path) -> None:
    """What lies behind may be cut by the next writer, and would be missed as lost."""
    with penstock.open(source, read_only=True) as store:
        limit = store.read("t", 0, 400, 1).messages[0].log_offset
    progress = Progress(Files(), source)
    progress.read()
    progress.state.visible_offset = limit
    progress.write()
    progress.close()
    (source / "penstock" / "clean").unlink()
    (piece,) = slices_of([source], ["t"], COUNT)
    assert piece.stop == 400
    longer = piece._replace(stop=COUNT)
    assert still_there([longer], skips=False) == ([longer], 0), "it is there, if not for certain"


def test_a_plan_of_all_topics_has_no_messages_that_wait(source: Path) -> None:
    """Copied as plain messages, prepared ones would look committed, and delayed ones delivered."""
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    with penstock.open(source) as store:
        store.lowlevel.put_copies([(penstock.Message(half, b"prepared", queue=0), b"")])
    assert {piece.topic for piece in slices_of([source], [], COUNT)} == {"t"}
    assert [piece.topic for piece in slices_of([source], [half], COUNT)] == [half]


def test_a_task_does_not_pass_over_what_is_gone(source: Path) -> None:
    piece = slices_of([source], ["t"], COUNT)[0]
    gone = lose(source)
    with penstock.open(source, read_only=True) as store:
        for batches in (messages_of(piece, store, NAMES), keys_of(piece, store)):
            with pytest.raises(DataLossError, match=r"messages \[0, \d+\) of queue 0"):
                list(batches)
        left = piece._replace(start=gone)
        assert sum(batch.num_rows for batch in messages_of(left, store, NAMES)) == COUNT - gone


def test_an_export_counts_what_went_while_it_ran(source: Path, tmp_path: Path) -> None:
    gone = lose(source)
    piece = StoreSpan("source", "t", 0, 0, COUNT)
    with Exported(tmp_path / "out") as exported, penstock.open(source, read_only=True) as store:
        done = exported.write(piece, store, counts_lost=True)
    assert (done.lost, done.rows) == (gone, COUNT - gone)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("segments", [1, 4])
def test_a_retried_export_keeps_what_its_first_attempt_has_written(
    tmp_path: Path, segments: int, *, is_killed: bool
) -> None:
    """The retry replaced a day's file by one without the messages that retention had deleted in between."""
    clock, root, out = ManualClock(), tmp_path / "source", tmp_path / "out"
    with penstock.open(root, environ={}, clock=clock, **SIZES) as store:
        for _ in range(2):
            store.put_many([Message("t", b"x" * 500, queue=0) for _ in range(COUNT // 2)])
            clock.now_ms += 86_400_000
    piece = StoreSpan("source", "t", 0, 0, COUNT)
    with Exported(out) as exported, penstock.open(root, read_only=True) as store:
        whole = exported.write(piece, store, counts_lost=True)
    assert (whole.rows, whole.files, whole.lost) == (COUNT, 2, 0)
    first, second = sorted(out.glob("topic=t/date=*/*"))
    if is_killed:
        second.unlink()
    gone = lose(root, segments)
    assert (gone > COUNT // 2) == (segments == 4)
    with Exported(out) as exported, penstock.open(root, read_only=True) as store:
        again = exported.write(piece, store, counts_lost=True)
    files = sorted(out.glob("topic=t/date=*/*"))
    offsets = [n for file in files for n in pq.ParquetFile(file).read()["offset"].to_pylist()]
    lost = gone - COUNT // 2 if is_killed and segments == 4 else 0
    assert offsets == [n for n in range(COUNT) if not COUNT // 2 <= n < COUNT // 2 + lost]
    assert (again.rows, again.files, again.lost) == (COUNT - lost, 2, lost)
    assert files[0] == first
    assert {path.suffix for path in files} == {".parquet"}


class Frame:
    """Stands for a frame of slices: what the sink gets of it is read here."""

    def __init__(self, slices: list[StoreSpan]) -> None:
        self.slices = slices

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        batches: list[pa.RecordBatch] = []
        for piece in self.slices:
            with penstock.open(piece.store, read_only=True) as store:
                batches += messages_of(piece, store, NAMES)
        names = {"topic": pa.string(), "offset": pa.int64(), "value": pa.binary()}
        return pa.Table.from_batches(batches, pa.schema(names.items()))


def test_a_replay_that_was_overtaken_says_so_and_may_go_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    for name, fake in (
        ("write_batch", sink.write), ("from_stores", lambda _spark, slices: Frame(slices)),
        ("changed", lambda frame, *_: frame), ("ordered", lambda frame, _rows: frame),
    ):  # fmt: skip
        monkeypatch.setattr(replay, name, fake)
    gone = 0

    def taken(done: int, _total: int) -> None:
        nonlocal gone
        gone = gone or lose(source, 4)

    def run(**more: Any) -> replay.ReplayReport:
        target = str(tmp_path / "target")
        return replay.run(None, str(source), target, pace=Pace(batch_rows=100), **more)

    with pytest.raises(DataLossError, match=r"messages \[100, "):
        run(on_progress=taken)
    done = run(skip_lost=True)
    assert (done.lost, done.rows, done.written) == (gone - 100, COUNT - gone, 5)
    with penstock.open(tmp_path / "target", read_only=True) as store:
        assert len(list(store.scan("t"))) == 100 + COUNT - gone


def test_a_compaction_that_was_overtaken_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[StoreSpan]] = []

    def latest(_spark: Any, slices: list[StoreSpan], *_: Any) -> Any:
        seen.append(slices)
        raise KeyboardInterrupt

    monkeypatch.setattr(compact, "_latest", latest)
    monkeypatch.setattr(compact, "watched", lambda *_: memoryview(b""))
    target = str(tmp_path / "target")
    with pytest.raises(KeyboardInterrupt):
        compact.run(None, str(source), target, "t")
    gone = lose(source)
    with pytest.raises(DataLossError):
        compact.run(None, str(source), target, "t")
    with pytest.raises(KeyboardInterrupt):
        compact.run(None, str(source), target, "t", skip_lost=True)
    assert [sum(p.stop - p.start for p in each) for each in seen] == [COUNT, COUNT - gone]
