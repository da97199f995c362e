"""Damage in the middle of a log costs no message behind it, and opening never cuts at it.

200 random damages of a log of 2,000 messages in eight segments: overwritten stretches, zeroed pages, a chunk copied
from elsewhere, a chunk as it was in an older state of the disk, single bits. The log was flushed, so none of it is a
torn tail. Each is looked at by a reader, by `verify`, and for a share by opening for writing, appending and crashing.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.damage.stores import Made, note_all, opened, told
from tests.lanes import rounds

from penstock.errors import CorruptionError
from penstock.format.validity import is_valid
from penstock.message import Message, StoredMessage
from penstock.testing.kit import copy_store

COUNT = 2000
SEGMENT = 64 * 1024
SETTINGS: dict[str, Any] = {
    "geometry.segment_bytes": SEGMENT, "geometry.queue_entries": 400, "geometry.index_slots": 100,
    "geometry.index_entries": 1000, "log.checksum": "crc32+record",
}  # fmt: skip
DAMAGES = rounds(gate=40, night=200)
# Of each so many one is opened for writing as well, which takes a copy and a recovery.
EVERY_WRITTEN = 20


pytestmark = pytest.mark.usefixtures("quiet")


def bodies(count: int) -> list[bytes]:
    chance = random.Random(5)
    return [b"%d:" % n + chance.randbytes(chance.randrange(250)) for n in range(count)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, bytes]:
    """A store whose writer was killed after a flush, and the log as it stood at half of it."""
    root = tmp_path_factory.mktemp("middle")
    with opened(root / "live", **SETTINGS) as live:
        sent = [
            Message("t", body, queue=n % 3, keys=[f"k{n}"], tag=f"g{n % 4}")
            for n, body in enumerate(bodies(COUNT))
        ]
        live.put_many(sent[: COUNT // 2])
        live.flush()
        older = log_bytes(root / "live")
        live.put_many(sent[COUNT // 2 :])
        live.flush()
        end = live.stats()["log_end_offset"]
        records = {m.log_offset: m.record for m in live.scan("t")}
        assert len(records) == COUNT
        note_all(live)
        copy_store(root / "live", root / "store")
    return Made(root / "store", records, end), older


def log_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in segments(path))


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


def overwritten(chance: random.Random, log: bytes, older: bytes, at: int) -> tuple[int, bytes]:
    return at, chance.randbytes(chance.choice((1, 7, 64, 700, 5000)))


def zeroed(chance: random.Random, log: bytes, older: bytes, at: int) -> tuple[int, bytes]:
    return at - at % 4096, bytes(4096 * chance.choice((1, 1, 2)))


def misdirected(chance: random.Random, log: bytes, older: bytes, at: int) -> tuple[int, bytes]:
    size = chance.choice((512, 4096, 8192))
    source = chance.randrange(0, len(log) - size, 512)
    return at - at % 512, log[source : source + size]


def restored(chance: random.Random, log: bytes, older: bytes, at: int) -> tuple[int, bytes]:
    """A write that was lost: the disk has what stood there before, in an older log or none."""
    at -= at % 4096
    return at, older[at : at + 4096].ljust(4096, b"\0")


def one_bit(chance: random.Random, log: bytes, older: bytes, at: int) -> tuple[int, bytes]:
    return at, bytes([log[at] ^ 1 << chance.randrange(8)])


KINDS: list[Callable[[random.Random, bytes, bytes, int], tuple[int, bytes]]] = [
    overwritten, zeroed, misdirected, restored, one_bit,
]  # fmt: skip


def damage(made: Made, chance: random.Random, log: bytes, older: bytes, turn: int) -> set[int]:
    """Damage the log's files once; return the offsets of the records that are hit."""
    start, data = KINDS[turn % len(KINDS)](chance, log, older, chance.randrange(made.end))
    data = data[: SEGMENT - start % SEGMENT]
    now = log[:start] + data + log[start + len(data) :]
    with (made.path / "commitlog" / f"{start // SEGMENT * SEGMENT:020d}").open("r+b") as file:
        file.seek(start % SEGMENT)
        file.write(data)
    return {o for o, record in made.records.items() if now[o : o + len(record)] != record}


def put_back(made: Made, log: bytes) -> None:
    for file in segments(made.path):
        file.write_bytes(log[int(file.name) : int(file.name) + SEGMENT])


def test_random_damage_in_the_middle_costs_only_what_it_hit(
    store: tuple[Made, bytes], tmp_path: Path
) -> None:
    made, older = store
    older = older.ljust(made.end, b"\0")
    log = log_bytes(made.path)
    assert len(log) > made.end > 7 * SEGMENT
    for turn in range(DAMAGES):
        chance = random.Random(turn)
        hit = damage(made, chance, log, older, turn)
        with told(f"turn {turn}"):
            check_readers(made, hit)
            if turn % EVERY_WRITTEN == 0:
                check_writing(made.copy(tmp_path / "copy"), hit)
        put_back(made, log)


def check_readers(made: Made, hit: set[int]) -> None:
    with opened(made.path, read_only=True) as store:
        found = list(store.scan("t"))
        check_messages(made, found, hit)
        unseen = {m.log_offset for m in found if m.record != made.records[m.log_offset]}
        for offset in hit:
            with pytest.raises(CorruptionError, match=f" at byte {offset % SEGMENT}"):
                store.at(offset)
        findings = list(store.verify())
        assert bool(hit) <= bool(findings)
        assert all(f.part == "log" or f.log_offset in hit | unseen for f in findings)


def check_messages(made: Made, found: list[StoredMessage], hit: set[int]) -> None:
    offsets = [message.log_offset for message in found]
    assert offsets == sorted(set(offsets))
    assert set(offsets) == made.records.keys() - hit, "all that was not hit, none that was"
    for message in found:
        assert message.record == made.records[message.log_offset]


def check_writing(made: Made, hit: set[int]) -> None:
    """Open for writing with all queues and the index lost, append, crash, and open again."""
    before = log_bytes(made.path)
    for name in ("consumequeue", "index"):
        shutil.rmtree(made.path / name)
    with opened(made.path, **SETTINGS) as store:
        check_messages(made, [m for m in store.scan("t") if m.log_offset < made.end], hit)
        put = [store.put("t", b"behind %d" % n, queue=n % 3) for n in range(20)]
        store.flush()
        crashed = Made(made.path.with_name("crashed"), made.records, made.end)
        made.copy(crashed.path)
    with opened(crashed.path, **SETTINGS) as store:
        found = list(store.scan("t"))
        check_messages(made, [m for m in found if m.log_offset < made.end], hit)
        assert [m.body for m in found if m.log_offset >= made.end] == [
            b"behind %d" % n for n in range(20)
        ]
        assert put[0].log_offset == made.end, "nothing was cut"
    assert log_bytes(crashed.path)[: made.end] == before[: made.end], (
        "no byte of the log has changed"
    )


@pytest.mark.parametrize("lost", ["progress", "folder"])
def test_damage_that_the_marks_do_not_vouch_for_refuses_writing_and_keeps_all(
    store: tuple[Made, bytes], tmp_path: Path, lost: str
) -> None:
    """Without the flushed offset the walk goes over the damage: a sound record behind it makes it damage."""
    made, older = store
    log = log_bytes(made.path)
    refused = 0
    for turn in range(25):
        copy = made.copy(tmp_path / "copy")
        if lost == "progress":
            (copy.path / "penstock" / "progress").unlink()
        else:
            keep = (copy.path / "penstock" / "geometry.json").read_bytes()
            shutil.rmtree(copy.path / "penstock")
            (copy.path / "penstock").mkdir()
            (copy.path / "penstock" / "geometry.json").write_bytes(keep)
        (copy.path / "checkpoint").unlink()
        (copy.path / "abort").unlink()
        (copy.path / "abort").touch()
        # Whole sectors of zeros, after a crash, are taken for pages that were never written (decision 2).
        kind = turn if turn % len(KINDS) in (0, 4) else turn - turn % len(KINDS)
        hit = damage(copy, random.Random(turn), log, older.ljust(made.end, b"\0"), kind)
        before = log_bytes(copy.path)
        if lost == "folder":
            # Nobody knows any more that records end in a CRC: where no body and no length was hit, they are valid.
            now = {o: before[o : o + len(made.records[o])] for o in hit}
            whole = {o: record for o, record in now.items() if is_valid(record, o)}
            copy = copy._replace(records={**made.records, **whole})
            hit -= whole.keys()
        if not hit or max(hit) == max(made.records):
            continue
        with (
            pytest.raises(
                CorruptionError,
                match=f"{min(hit) // SEGMENT * SEGMENT:020d} .* byte {min(hit) % SEGMENT}",
            ),
            opened(copy.path, **SETTINGS),
        ):
            pass
        refused += 1
        assert log_bytes(copy.path) == before
        with opened(copy.path, read_only=True) as store_read:
            check_messages(copy, list(store_read.scan("t")), hit)
    assert refused > 15
