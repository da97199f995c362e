"""Topics that a broker deleted, and topics that it deleted and made again, while the log still has the old records.

A broker removes a topic's folder under `consumequeue/` and its entry in `config/topics.json`; the records stay in
the log. Here Penstock writes the log, and the folders, the list of topics and Penstock's own side folder are
taken away as a broker would leave them. `tests/night/brokers/test_deleted_topics.py` does it with a real one.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import messages_in

import penstock
from penstock import Store, UnknownTopicError
from penstock.dispatch.rebuild import listed_topics
from penstock.durability.written_ranges import Ranges, known_ranges
from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Message
from penstock.testing.kit import copy_store
from penstock_tools.segmentwise import start_reindex

SIZES: dict[str, Any] = {
    "geometry.segment_bytes": 65536,
    "geometry.queue_entries": 16,
    "geometry.index_slots": 64,
    "geometry.index_entries": 4096,
    # What a broker leaves has no CRC of the whole record.
    "log.checksum": "crc32",
    "retention.use": [],
}
GEOMETRY = {name: value for name, value in SIZES.items() if name.startswith("geometry")}


class Directory:
    """A store's folder that a broker and Penstock use by turns."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, **settings: Any) -> Store:
        return penstock.open(self.root, environ={}, **{**SIZES, **settings})

    def put(self, topic: str, bodies: Iterable[str], queue: int = 0) -> list[int]:
        """Put messages, close, and return their queue offsets."""
        with self.open() as store:
            return [
                store.put(topic, b.encode(), queue=queue, keys=[b]).queue_offset for b in bodies
            ]

    def list_topics(self, *topics: str) -> None:
        """Write the broker's list of topics."""
        path = self.root / "config" / "topics.json"
        path.parent.mkdir(exist_ok=True)
        table = {topic: {"topicName": topic, "perm": 6} for topic in (*topics, "TBW102")}
        path.write_text(json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": table}))

    def drop_queues(self, *names: str) -> None:
        """Remove folders of queues, as a broker does that deletes a topic."""
        for name in names:
            shutil.rmtree(self.root / "consumequeue" / name)

    def make_foreign(self, *, killed: bool = False) -> None:
        """Leave the directory as if only a broker had ever written it."""
        shutil.rmtree(self.root / "penstock")
        if killed:
            (self.root / "abort").write_text("1")

    def broker_deletes(self, topic: str, *others: str) -> None:
        """Do what a broker does that deletes a topic and keeps others."""
        self.drop_queues(topic)
        self.list_topics(*others)
        self.make_foreign()

    def ranges(self) -> Ranges:
        """Return what is known of who wrote."""
        log = SegmentedLog(Files(), self.root / "commitlog", 65536, mapped=False)
        log.refresh()
        return known_ranges(Files(), self.root, log)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "store")


def bodies(store: Store, topic: str, queue: int = 0) -> list[str]:
    return [m.body.decode() for m in messages_in(store, topic, queue=queue)]


def check_healthy(directory: Directory) -> None:
    """Nothing is wrong, and a repair would change nothing."""
    with directory.open(read_only=True) as store:
        # That a queue has a new generation is a note.
        assert [f.text for f in store.verify() if not f.is_note] == []
    steps = penstock.repair(directory.root, environ={}, **GEOMETRY).steps
    assert [step for step in steps if step.action != "marks"] == []


def reindex(directory: Directory) -> None:
    """Make all queues again, in parts that do not see each other's."""
    with start_reindex(directory.root, shards=3, settings=GEOMETRY) as work:
        walked = [work.task.condense(base) for base in work.bases]
        work.finish(walked, {part: work.task.make(part) for part in work.parts})


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_deleted_topic_stays_deleted(directory: Directory, killed: bool) -> None:
    """Opening for writing brought all of it back: 0.1 built missing queues from the log."""
    directory.put("gone", numbered("old", 40), queue=0)
    directory.put("kept", numbered("k", 5), queue=0)
    directory.broker_deletes("gone", "kept")
    if killed:
        (directory.root / "abort").write_text("1")
    for _ in range(2):
        with directory.open() as store:
            assert store.topics() == {"kept": [0]}
            assert (store.min_offset("gone", 0), store.max_offset("gone", 0)) == (0, 0)
            for read in (lambda: store.read("gone", 0), lambda: store.to_arrow("gone")):
                with pytest.raises(UnknownTopicError):
                    read()
            assert bodies(store, "kept") == numbered("k", 5)
        check_healthy(directory)


def test_records_of_a_deleted_topic_are_found_by_key_and_by_place(directory: Directory) -> None:
    """As a broker answers queryMessage and viewMessage while the log has them."""
    directory.put("gone", ["old0"], queue=0)
    directory.broker_deletes("gone")
    with directory.open() as store:
        (found,) = store.find("old0", "gone")
        assert found.body == b"old0"
        assert store.at(found.log_offset).body == b"old0"
        assert store.get(found.message_id).body == b"old0"


@pytest.mark.slow
def test_a_put_to_a_deleted_topic_begins_at_0_and_is_not_lost(
    directory: Directory, tmp_path: Path
) -> None:
    """Nor after a kill before its queue was on disk, though no list of topics has its name."""
    directory.put("gone", numbered("old", 40), queue=0)
    directory.broker_deletes("gone", "kept")
    with directory.open(flush="sync") as store:
        assert [store.put("gone", f"new{n}".encode(), queue=0).queue_offset for n in range(3)] == [
            0,
            1,
            2,
        ]
        killed = Directory(tmp_path / "killed")
        copy_store(directory.root, killed.root)
        if (killed.root / "consumequeue" / "gone").exists():
            killed.drop_queues("gone")
    for each in (directory, killed):
        with each.open() as store:
            assert bodies(store, "gone") == numbered("new", 3)
            assert store.put("gone", b"new3", queue=0).queue_offset == 3
        check_healthy(each)


@pytest.mark.slow
def test_a_broker_in_between_does_not_delete_what_penstock_put(directory: Directory) -> None:
    """A broker removes the queues of every topic that it does not list when it deletes any."""
    directory.put("theirs", numbered("t", 5), queue=0)
    directory.list_topics("theirs")
    directory.make_foreign()
    directory.put("ours", numbered("o", 5), queue=0)
    with directory.open() as store:
        end = store.stats()["log_end_offset"]
    # As after a kill: nothing says what was listed when Penstock wrote last.
    (directory.root / "penstock" / "clean").unlink()
    # The broker's start shows in the lock file's time.
    (directory.root / "lock").write_bytes(b"lock")
    directory.drop_queues("ours", "theirs")
    directory.list_topics()
    with directory.open() as store:
        assert bodies(store, "ours") == numbered("o", 5)
        assert "theirs" not in store.topics()
        assert [r.is_open for r in directory.ranges().written] == [True]
        assert store.stats()["log_end_offset"] == end


@pytest.mark.slow
@pytest.mark.parametrize("theirs", [0, 1])
@pytest.mark.parametrize("count", [3, 400])
def test_what_follows_ours_in_a_deleted_topic_is_kept_in_every_queue(
    directory: Directory, count: int, theirs: int
) -> None:
    """Opening dropped it or not as batches fell, and by queue; verify then missed the entries."""
    directory.put("gone", numbered("before", 4), queue=3)
    directory.put("gone", numbered("before", 4), queue=2)
    directory.make_foreign()
    directory.put("gone", numbered("ours", count), queue=0)
    side = directory.root / "penstock"
    shutil.copytree(side, directory.root / "kept")
    directory.put("gone", numbered("theirs", count), queue=theirs)
    directory.put("gone", numbered("last", 1), queue=2)
    # As a broker leaves it that wrote after us, and deleted the topic.
    shutil.rmtree(side)
    (directory.root / "kept").rename(side)
    (side / "clean").unlink()
    (directory.root / "lock").write_bytes(b"lock")
    directory.drop_queues("gone")
    directory.list_topics()
    with directory.open(read_only=True) as store:
        texts = [f.text for f in store.verify() if f.part == "queue"]
        missing = sum(int(text.split(": ")[1].split()[0]) for text in texts)
    for turn in range(3):
        with directory.open() as store:
            ours = bodies(store, "gone")
            other = numbered("theirs", count)
            assert ours == numbered("ours", count) + (other if theirs == 0 else [])
            assert bodies(store, "gone", 1) == (other if theirs else [])
            # Its generation goes on after ours began. That of queue 3 had ended.
            assert bodies(store, "gone", 2) == [*numbered("before", 4), "last0"]
            assert bodies(store, "gone", 3) == []
        check_healthy(directory)
        if turn == 0:
            reindex(directory)
        else:
            directory.make_foreign(killed=turn == 1)
    assert missing == 2 * count + 5


def made_again(directory: Directory, old: int, new: int) -> None:
    """Leave a topic that had `old` messages, was deleted and made again, and has `new`; and another."""
    directory.put("again", numbered("old", old), queue=0)
    directory.put("kept", numbered("k", 5), queue=0)
    directory.broker_deletes("again", "kept")
    directory.put("again", numbered("new", new), queue=0)
    directory.list_topics("again", "kept")
    directory.make_foreign()


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [(40, 3), (3, 40), (20, 20), (1, 1), (17, 16)])
def test_a_topic_made_again_has_its_new_messages_only(
    directory: Directory, old: int, new: int
) -> None:
    """0.1 put the old messages behind the new ones, and gave offsets that the broker never gave."""
    made_again(directory, old, new)
    check_healthy(directory)
    for turn in range(3):
        with directory.open() as store:
            expected = numbered("new", new) + numbered("more", turn)
            assert bodies(store, "again") == expected
            assert (store.min_offset("again", 0), store.max_offset("again", 0)) == (
                0,
                len(expected),
            )
            assert store.to_arrow("again").column("body").to_pylist() == [
                b.encode() for b in expected
            ]
            first = next(store.scan("again"))
            assert store.offset_at("again", 0, first.store_time_ms / 1000) == 0
            assert store.offset_at("again", 0, 0 / 1000) == 0
            assert store.put("again", f"more{turn}".encode(), queue=0).queue_offset == len(expected)
        check_healthy(directory)
        directory.make_foreign(killed=turn == 1)


@pytest.mark.slow
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("old", "new"), [(40, 3), (3, 40)])
def test_a_lost_queue_comes_back_with_its_last_generation(
    directory: Directory, old: int, new: int, listed: bool
) -> None:
    """With the list of topics, which has it, and without any: the restart at 0 tells."""
    made_again(directory, old, new)
    if not listed:
        (directory.root / "config" / "topics.json").unlink()
    directory.drop_queues("again", "kept")
    with directory.open() as store:
        assert bodies(store, "again") == numbered("new", new)
        assert bodies(store, "kept") == numbered("k", 5)
    check_healthy(directory)


@pytest.mark.slow
def test_queues_of_a_topic_made_again_that_are_still_empty_stay_so(directory: Directory) -> None:
    """A broker makes a queue's folder with its first message: the others are not lost, but not used yet."""
    for queue in range(4):
        directory.put("again", numbered(f"old{queue}-", 6), queue=queue)
    directory.put("again", numbered("last", 2), queue=0)
    directory.put("again", numbered("last", 2), queue=3)
    directory.broker_deletes("again")
    directory.put("again", ["new"], queue=0)
    directory.list_topics("again")
    directory.make_foreign()
    # What was stored in queue 3 after the last old message of queue 0 is of the same generation as that before.
    check_healthy(directory)
    with directory.open() as store:
        assert store.topics() == {"again": [0]}
        assert store.put("again", b"new", queue=3).queue_offset == 0
    check_healthy(directory)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("way", ["repair", "reindex"])
def test_queues_built_again_have_the_last_generation_only(
    directory: Directory, way: str, lost: bool
) -> None:
    """A repair makes all queues again when one is damaged; so does a reindex, in parts."""
    made_again(directory, 40, 3)
    directory.put("gone", numbered("g", 5), queue=0)
    directory.broker_deletes("gone", "again", "kept")
    path = directory.root / "consumequeue" / "kept" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.write(b"\0\1\2\3\4\5\6\7")
    if lost:
        directory.drop_queues("kept")
    if way == "repair":
        assert penstock.repair(directory.root, environ={}, apply=True, **GEOMETRY).applied
    else:
        reindex(directory)
    for read_only in (True, False):
        with directory.open(read_only=read_only) as store:
            assert store.topics() == {"again": [0], "kept": [0]}
            assert bodies(store, "again") == numbered("new", 3)
            assert bodies(store, "kept") == numbered("k", 5)
        check_healthy(directory)


def is_refused_at(directory: Directory, position: int) -> bool:
    """Return whether opening for writing names the record there, reading serves all others, and nothing changes."""
    before = {p: p.read_bytes() for p in directory.root.rglob("*") if p.is_file()}
    with pytest.raises(CorruptionError) as caught:
        directory.open()
    after = {p: p.read_bytes() for p in directory.root.rglob("*") if p.is_file()}
    return caught.value.position == position and after == before


@pytest.mark.parametrize("foreign", [True, False])
@pytest.mark.parametrize("ordinal", [1, 2, 5])
def test_a_queue_offset_that_flipped_to_0_begins_no_generation(
    directory: Directory, ordinal: int, foreign: bool
) -> None:
    """Or all messages before it would leave the queue: the next record goes on as if nothing had happened."""
    directory.put("t", numbered("m", 10), queue=0)
    offsets = renumber(directory, "t", {ordinal: 0}, foreign=foreign)
    directory.drop_queues("t")
    assert is_refused_at(directory, offsets[ordinal])


@pytest.mark.slow
def test_a_last_queue_offset_that_flipped_to_0_begins_no_generation_in_a_log_of_ours(
    directory: Directory,
) -> None:
    """Penstock's own offsets never begin again. Of the last record of a broker's queue that cannot be said."""
    directory.put("t", numbered("m", 10), queue=0)
    renumber(directory, "t", {9: 0}, foreign=False)
    directory.drop_queues("t")
    with directory.open() as store:
        assert [body for body in bodies(store, "t") if body != "m9"] == numbered("m", 9)


def renumber(
    directory: Directory, topic: str, numbers: dict[int, int], *, foreign: bool = True
) -> list[int]:
    """Give records of queue 0 other queue offsets, as a broker may; returns the log offsets of all."""
    with directory.open(read_only=True) as store:
        offsets = [m.log_offset for m in store.scan(topic)]
    with (directory.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        for old, new in numbers.items():
            file.seek(offsets[old] + 20)
            file.write(new.to_bytes(8, "big"))
    if foreign:
        directory.make_foreign()
    return offsets


@pytest.mark.slow
def test_offsets_that_repeat_keep_their_first_record(directory: Directory) -> None:
    """5.0 to 5.3.2, stopped with queues behind the log, give offsets twice and enter the first record."""
    directory.put("t", numbered("m", 10), queue=0)
    renumber(directory, "t", {6: 3, 7: 4, 8: 5, 9: 6})
    directory.drop_queues("t")
    for _ in range(2):
        with directory.open() as store:
            assert bodies(store, "t") == ["m0", "m1", "m2", "m3", "m4", "m5", "m9"]
            assert store.max_offset("t", 0) == 7
        check_healthy(directory)
        directory.make_foreign(killed=True)


@pytest.mark.slow
def test_a_repeat_from_0_that_a_broker_entered_stays(directory: Directory) -> None:
    """It enters a record with offset 0 wherever the queue ends, and the next ones not at all."""
    directory.put("t", numbered("m", 10), queue=0)
    offsets = renumber(directory, "t", {6: 0, 7: 1, 8: 2, 9: 3})
    path = directory.root / "consumequeue" / "t" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(7 * 20)
        file.write(bytes(9 * 20))
    with directory.open() as store:
        assert store.max_offset("t", 0) == 7
        assert bodies(store, "t")[:6] == numbered("m", 6)
        assert store.lowlevel.queue_entries("t", 0, 6, 7).log_offsets.tolist() == [offsets[6]]
    check_healthy(directory)


@pytest.mark.slow
def test_a_lone_restart_at_0_that_a_broker_entered_stays(directory: Directory) -> None:
    """What a broker killed before it entered the first message of a topic made again leaves after its next start."""
    directory.put("t", numbered("m", 6), queue=0)
    offsets = renumber(directory, "t", {3: 0})
    check_healthy(directory)
    with directory.open() as store:
        assert bodies(store, "t") == ["m0", "m1", "m2", "m4", "m5"]
        assert store.lowlevel.queue_entries("t", 0, 3, 4).log_offsets.tolist() == [offsets[3]]
        assert store.put("t", b"m6", queue=0).queue_offset == 6
    check_healthy(directory)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("number", [6, 7, 1 << 52, (1 << 52) + 5])
def test_a_queue_offset_that_flipped_upwards_is_corruption(
    directory: Directory, number: int, lost: bool
) -> None:
    """An entry there would have a later place than all that follow: opening names the record, a repair keeps the rest."""
    directory.put("t", numbered("m", 10), queue=0)
    offsets = renumber(directory, "t", {5: number})
    if lost:
        directory.drop_queues("t")
    assert is_refused_at(directory, offsets[5])
    penstock.repair(directory.root, environ={}, apply=True, **GEOMETRY)
    with directory.open(read_only=True) as store:
        assert [body for body in bodies(store, "t") if body != "m5"] == [
            body for body in numbered("m", 10) if body != "m5"
        ]
        assert store.max_offset("t", 0) == 10


@pytest.mark.parametrize("topic", ["%RETRY%group", "%DLQ%group", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
                                   "rmq_sys_wheel_timer", "DefaultCluster_REPLY_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"])  # fmt: skip
def test_topics_that_brokers_do_not_always_list_count_as_there(
    directory: Directory, topic: str
) -> None:
    """4.x does not list the topic of transactions' marks, for one."""
    # Some of them take no message of a caller.
    with directory.open() as store:
        store.lowlevel.put_copies([(Message(topic, b"m", queue=0), b"")])
    directory.broker_deletes(topic)
    with directory.open() as store:
        assert bodies(store, topic) == ["m"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"topicConfigTable": 3}', "{}", "\xff", '{"dataVersion":{}}']
)
def test_a_list_of_topics_that_tells_nothing_deletes_nothing(
    directory: Directory, text: str
) -> None:
    """Lost, torn or hostile: the queues are built from the log."""
    directory.put("t", ["m"], queue=0)
    directory.broker_deletes("t")
    (directory.root / "config" / "topics.json").write_text(text, "latin-1")
    assert listed_topics(Files(), directory.root) is None
    with directory.open() as store:
        assert bodies(store, "t") == ["m"]


@pytest.mark.parametrize("what", ["no-list", "no-ranges", "damaged-ranges", "empty-ranges", "no-marks-nor-ranges"])  # fmt: skip
def test_in_doubt_no_record_is_a_deleted_one(what: str, directory: Directory) -> None:
    """No broker was ever here; or the file of ranges is damaged, an older Penstock's, which had none, or gone with the marks."""
    directory.put("ours", numbered("o", 20), queue=0)
    path = directory.root / "penstock" / "ranges"
    if what == "no-marks-nor-ranges":
        (directory.root / "penstock" / "clean").unlink()
    if what.endswith("damaged-ranges") or what == "empty-ranges":
        path.write_text("[1]" if what == "damaged-ranges" else "")
    elif what != "no-list":
        path.unlink()
    if what != "no-list":
        directory.list_topics("theirs")
    for _ in range(2):
        directory.drop_queues("ours")
        with directory.open() as store:
            assert bodies(store, "ours") == numbered("o", 20)
            end = store.stats()["log_end_offset"]
        if what == "no-ranges":
            assert directory.ranges().perhaps == ((0, end),)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["[1]", None])
def test_a_repair_does_not_end_the_doubt(content: str | None, directory: Directory) -> None:
    """It notes the gap that it fills in the file of ranges, which then said that nothing was ours."""
    with directory.open() as store:
        for n in range(120):
            store.put("ours", b"%d" % n + b"x" * 1000, queue=0)
        sent = list(store.scan("ours"))
    path = directory.root / "penstock" / "ranges"
    path.unlink() if content is None else path.write_text(content)
    # The last record of the first segment, and the filler behind it: a blank record will cover both.
    last = [m for m in sent if m.log_offset < 65536][-1]
    first = sorted((directory.root / "commitlog").iterdir())[0]
    data = bytearray(first.read_bytes())
    for place in (last.log_offset + 90, last.log_offset + last.size + 4):
        data[place : place + 2] = b"??"
    first.write_bytes(data)
    directory.drop_queues("ours")
    directory.list_topics("theirs")
    assert penstock.repair(directory.root, environ={}, apply=True, cut=True, **GEOMETRY).applied
    for read_only in (True, False):
        with directory.open(read_only=read_only) as store:
            assert [m.body for m in store.scan("ours")] == [m.body for m in sent if m != last]
    assert directory.ranges().gaps
