"""Exporting: which messages are selected, and a file that appears whole or not at all."""

import errno
import io
import json
import tracemalloc
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.lanes import at_night

from penstock.errors import BusyError, ConfigError, OffsetError
from penstock.files import Files
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import open_store
from penstock.testing.kit import ManualClock
from penstock_index.queue_files import PRE_BLANK
from penstock_tools.exchange import rows
from penstock_tools.exchange.exporting import Selection, export_messages, export_stream
from penstock_tools.exchange.rows import batches_of


@pytest.fixture
def store(open_small: OpenStore) -> Store:
    store = open_small()
    for number in range(50):
        store.put("ab"[number % 2], b"%d" % number, queue=0)
    return store


def test_the_report_says_what_is_in_the_file(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with store:
        report = export_messages(
            store, tmp_path / "m.ndjson", Selection(topics=["a"]), on_progress=lambda *at: seen.append(at)
        )  # fmt: skip
    assert (report.messages, report.topics, report.format) == (25, {"a": 25}, "ndjson")
    assert report.bytes == (tmp_path / "m.ndjson").stat().st_size
    assert (report.unreadable, report.deleted) == (0, 0)
    assert seen[0] == (0, 25)
    assert seen[-1] == (25, 25)
    rows = [json.loads(line) for line in (tmp_path / "m.ndjson").read_text().splitlines()]
    assert [row["body"] for row in rows] == [str(n) for n in range(0, 50, 2)]


def test_messages_of_a_missing_segment_are_not_called_deleted_by_retention(
    open_small: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were, and the export counted as whole; a reader was told nothing, or that an inner offset was outside."""
    with open_small() as store:
        store.put_many([Message("a", bytes(9000), queue=0) for _ in range(30)])
    segments = sorted((tmp_path / "store" / "commitlog").iterdir())
    segments[1].unlink()
    with open_store(tmp_path / "store", read_only=True) as store:
        assert "segments are missing between" in caplog.text
        report = export_messages(store, tmp_path / "m.ndjson")
        assert report.unreadable == 30 - report.messages > 0
        assert report.deleted == 0
        with pytest.raises(OffsetError, match="is in a segment that is gone, between"):
            store.to_arrow("a")


@pytest.mark.parametrize("number", [0, 2])
def test_messages_without_a_queue_entry_are_not_in_the_file_and_are_counted(
    open_small: OpenStore, tmp_path: Path, number: int
) -> None:
    """Zeroed entries were not counted at all, and those of a lost file as deleted by retention: the exit code was 0."""
    geometry = {"geometry.queue_entries": 16}
    with open_small(**geometry) as store:
        store.put_many([Message("a", b"%d" % n, queue=0) for n in range(100)])
    file = sorted((tmp_path / "store" / "consumequeue" / "a" / "0").iterdir())[number]
    data = file.read_bytes()
    for harmed, unreadable, blank in [
        (bytes(160) + data[160:], 8, 0),
        (data[:-20] + b"\xff" * 20, 1, 0),
        (data[:40] + PRE_BLANK * 3 + data[100:], 0, 3),
        (data[:20] + bytes(20) + PRE_BLANK + bytes(40) + data[100:], 3, 1),
        (None, 16, 0),
    ]:
        file.unlink() if harmed is None else file.write_bytes(harmed)
        with open_small(read_only=True, **geometry) as found:
            report = export_messages(found, tmp_path / "m.ndjson", overwrite=True)
        assert (report.unreadable, report.deleted) == (unreadable, 0)
        assert report.messages == 100 - unreadable - blank


def test_messages_deleted_while_they_are_exported_are_counted_as_deleted(
    open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small(**{"geometry.queue_entries": 16}) as store:
        for topic in "ab":
            store.put_many([Message(topic, bytes(9000), queue=0) for _ in range(40)])

        def delete(done: int, _total: int) -> None:
            if not done:
                store.delete_topic("b")
                store.discard_before(log_offset=4 * 65536)

        report = export_messages(store, tmp_path / "m.ndjson", on_progress=delete)
    assert (report.unreadable, report.messages + report.deleted) == (0, 80)
    assert report.deleted > 40


def test_a_file_is_replaced_only_if_asked(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("mine")
    with store:
        with pytest.raises(ConfigError, match="exists"):
            export_messages(store, path)
        assert path.read_text() == "mine"
        export_messages(store, path, overwrite=True)
        with pytest.raises(ConfigError, match="not a folder"):
            export_messages(store, tmp_path / "none" / "m.csv")
    assert path.read_text().count("\n") == 51


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["m.ndjson", "m.csv.gz", "m.parquet", "m.arrow"])
def test_an_export_that_fails_leaves_nothing(
    store: Store, tmp_path: Path, name: str, error: BaseException
) -> None:
    def fail(done: int, _total: int) -> None:
        if done:
            raise error

    path = tmp_path / name
    path.write_text("before")
    with store:
        with pytest.raises(type(error)):
            export_messages(store, path, overwrite=True, on_progress=fail)
        assert path.read_text() == "before"
        assert not (tmp_path / f"{name}.part").exists()
        export_messages(store, path, overwrite=True)
    assert path.stat().st_size > 500


def test_two_exports_to_one_file_do_not_mix(store: Store, tmp_path: Path) -> None:
    lock = Files().lock_one(tmp_path / "m.ndjson.part")
    assert lock is not None
    with store:
        with pytest.raises(BusyError, match="another export"):
            export_messages(store, tmp_path / "m.ndjson")
        lock.release()
        # What a killed export left is overwritten.
        (tmp_path / "m.ndjson.part").write_text("x" * 100_000)
        export_messages(store, tmp_path / "m.ndjson")
    assert "x" not in (tmp_path / "m.ndjson").read_text()


@pytest.mark.parametrize("kind", ["ndjson", "csv", "parquet", "arrow"])
def test_a_stream_needs_no_seeking_and_stays_open(store: Store, kind: str) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError(errno.ESPIPE, "a pipe")

    pipe = Pipe()
    with store:
        report = export_stream(store, pipe, kind=kind)
    assert not pipe.closed
    assert report.bytes == len(pipe.getvalue()) > 500


def test_corrupt_messages_are_counted(store: Store, tmp_path: Path, open_small: OpenStore) -> None:
    with store:
        at = store.read("a", 0, 3, 1).messages[0]
    path = next((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[at.log_offset + at.size - 30] ^= 1
    path.write_bytes(data)
    with open_small(read_only=True) as found:
        report = export_messages(found, tmp_path / "m.ndjson")
    assert (report.messages, report.unreadable) == (49, 1)


def test_a_batch_is_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_ROWS", 4)
    assert [len(batch) for batch in batches_of(["x" * 100] * 10, len)] == [4, 4, 2]
    monkeypatch.setattr(rows, "_BYTES", 250)
    assert [len(batch) for batch in batches_of(["x" * 100] * 7, len)] == [3, 3, 1]
    assert list(batches_of([], len)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m.ndjson", at_night("m.csv"), "m.arrow"])
def test_the_memory_does_not_grow_with_the_store(open_small: OpenStore, tmp_path: Path, name: str) -> None:  # fmt: skip
    peaks = []
    with open_small(**{"geometry.segment_bytes": 1 << 20}) as store:
        for _ in range(2):
            # 10 MB more each time: more than a batch may have.
            for number in range(200):
                store.put("t", bytes([number]) * 50_000, queue=0)
            tracemalloc.start()
            export_messages(store, tmp_path / name, overwrite=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.3 + 1e6
    assert peaks[1] < 60e6


def bodies(store: Store, **conditions: object) -> list[int]:
    selection = Selection(**conditions)  # type: ignore[arg-type] # as the test gives them
    return [int(m.body) for m in selection.messages(store, selection.spans(store))]


@pytest.fixture
def twelve(open_small: OpenStore) -> Store:
    """Twelve messages, one each second."""
    clock = ManualClock(1000)
    store = open_small(clock=clock)
    for number in range(12):
        store.put(
            "ab"[number % 2], b"%d" % number, queue=number % 3, tag="xyz"[number % 3], keys=[f"k{number % 4}", "all"]
        )  # fmt: skip
        clock.now_ms += 1000
    return store


@pytest.mark.parametrize(("conditions", "expected"), [
    ({}, list(range(12))), ({"topics": ["b"]}, [1, 3, 5, 7, 9, 11]), ({"topics": ["b", "a"]}, list(range(12))),
    ({"queues": [1]}, [1, 4, 7, 10]), ({"queues": [0, 2], "topics": ["a"]}, [0, 2, 6, 8]), ({"tag": "x || z"}, [0, 2, 3, 5, 6, 8, 9, 11]),
    ({"tag": "none"}, []), ({"keys": ["k1"]}, [1, 5, 9]), ({"keys": ["k1", "k2"]}, [1, 2, 5, 6, 9, 10]),
    ({"since_ms": 3000}, list(range(2, 12))), ({"since_ms": 3001}, list(range(3, 12))), ({"until_ms": 3000}, [0, 1, 2]),
    ({"until_ms": 2999}, [0, 1]), ({"since_ms": 3000, "until_ms": 5000}, [2, 3, 4]), ({"since_ms": 9000, "until_ms": 3000}, []),
    ({"topics": ["a"], "keys": ["k2"], "tag": "z", "since_ms": 1}, [2]),
])  # fmt: skip
def test_all_conditions_hold(twelve: Store, conditions: dict[str, object], expected: list[int]) -> None:  # fmt: skip
    with twelve:
        assert bodies(twelve, **conditions) == expected


def test_what_is_not_there_is_an_error_that_says_what_is(twelve: Store) -> None:
    with twelve:
        with pytest.raises(ConfigError, match="no topic 'c'; topics in the store: a, b"):
            bodies(twelve, topics=["c"])
        with pytest.raises(ConfigError, match=r"no queue 7; queues: \[0, 1, 2\]"):
            bodies(twelve, queues=[7])


def test_tags_with_spaces_of_other_scripts_are_exported(twelve: Store) -> None:
    """All spaces of Unicode around a tag were cut off, which `put` takes, and other reads find."""
    with twelve:
        for number, tag in enumerate(["\u3000a", "a\u00a0", "a\u2028", "a\u0085"], 100):
            twelve.put("a", b"%d" % number, queue=0, tag=tag)
            assert bodies(twelve, tag=f"x || {tag}\t || ")[4:] == [number]


def test_a_message_that_is_put_later_is_not_exported(twelve: Store) -> None:
    with twelve:
        selection = Selection()
        spans = selection.spans(twelve)
        twelve.put("a", b"12", queue=0)
        assert len(list(selection.messages(twelve, spans))) == 12


def test_queues_of_other_topics_messages_are_exported_only_if_named(twelve: Store) -> None:
    """The queues of `%LMQ%` topics refer to records of other topics, which would be exported twice."""
    with twelve:
        twelve.put("%LMQ%x", b"12", queue=0)
        assert bodies(twelve) == list(range(12))
        assert bodies(twelve, topics=["%LMQ%x"]) == [12]


def test_messages_that_wait_are_exported_only_if_their_topic_is_named(twelve: Store) -> None:
    """A message that waits to be committed may never be; one that waits for its time is delivered later."""
    with twelve:
        names = ["RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"]
        twelve.lowlevel.put_copies(
            [(Message(name, b"%d" % (20 + n), queue=0), b"") for n, name in enumerate(names)]
        )
        assert bodies(twelve) == list(range(12))
        assert bodies(twelve, topics=["a", "rmq_sys_wheel_timer"]) == [0, 2, 4, 6, 8, 10, 21]
