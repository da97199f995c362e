"""Writes the hand-made seeds: `python -m tests.fuzz.make_seeds`. Found cases lie beside them and stay."""

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.ground import ground
from tests.unit.format.test_records import EVERYTHING

from penstock.durability.progress import State, encode_slot
from penstock.format.record import (
    BLANK,
    MAGIC_BLANK,
    RecordFields,
    encode_record,
)
from penstock.log.scan import batch_marks

SEEDS = Path(__file__).parent / "seeds"


def main() -> None:
    for target, made in {
        "records": _records(), "segments": _segments(), "queues": _queues(), "indexes": _indexes(),
        "marks": _marks(), "tables": _tables(), "configs": _configs(),
    }.items():  # fmt: skip
        (SEEDS / target).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(made):
            (SEEDS / target / f"made-{number:02d}").write_bytes(data)


def _kinds(log_offset: int) -> Iterator[bytes]:
    """Return one record of each kind, each at the place behind the one before."""
    hosts = b"\x20\x01" + bytes(14) + b"\0\0\1\2"
    for changes in (
        {"topic": b"T"},
        {"topic": b"t" * 130},
        {"topic": b"six", "born_host": hosts, "store_host": hosts},
        {"topic": b"tags", "properties": b"TAGS\x01red\x02KEYS\x01one two\x02UNIQ_KEY\x01u\x02"},
        {"topic": "\u00e9".encode(), "properties": "TAGS\x01\U0001f600".encode()},
        {"topic": b"SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x013\x02"},
        {"topic": b"half", "sys_flag": 4, "prepared_offset": 9},
    ):
        for crc_property in (False, True):
            fields = RecordFields(body=b"body", log_offset=log_offset, store_time_ms=5, **changes)
            record = encode_record(fields, crc_property=crc_property)
            log_offset += len(record)
            yield record


def _records() -> Iterator[bytes]:
    yield from _kinds(0)
    yield b"".join(_kinds(0))
    yield encode_record(EVERYTHING)


def _batches() -> Iterator[bytes]:
    """Return segments with atomic batches: whole, with their ends missing, and with marks that nothing proves."""
    size = len(encode_record(RecordFields(topic=b"t", body=b"12")))
    for first, count in ((0, 4), (2, 3)):
        marks = batch_marks(first * size, (first + count) * size, 5 if first else None)
        for there in range(1, count + 1):
            numbers = [0] * first + [marks[0]] + [marks[1]] * (there - 1)
            yield b"".join(
                encode_record(RecordFields(
                    topic=b"t", body=b"12", queue_offset=row, log_offset=row * size, prepared_offset=number,
                ))
                for row, number in enumerate(numbers)
            )  # fmt: skip
    yield encode_record(RecordFields(topic=b"t", body=b"12", prepared_offset=-1))
    yield encode_record(RecordFields(topic=b"t", body=b"12", prepared_offset=batch_marks(9, 99)[1]))


def _segments() -> Iterator[bytes]:
    first = b"".join(_kinds(0))
    blank = BLANK.pack(4096 - len(first), MAGIC_BLANK)
    whole = (first + blank).ljust(4096, b"\0") + b"".join(_kinds(4096))
    yield first
    yield whole
    yield whole[:300] + b"\xff" + whole[301:]
    yield whole[:512] + bytes(512) + whole[1024:]
    yield from _batches()


def _queues() -> Iterator[bytes]:
    data = ground().queue_bytes
    yield data
    yield data[:100]
    yield data[:20] + bytes(20) + data[40:]
    yield data[:40] + bytes(8) + b"\x7f\xff\xff\xff" + data[52:]


def _indexes() -> Iterator[bytes]:
    yield ground().index_bytes
    yield ground().index_bytes[:200]


def _marks() -> Iterator[bytes]:
    root = ground().root
    yield b"\0" + (root / "checkpoint").read_bytes()[:64]
    slots = [encode_slot(State(flushed_offset=n, dispatched={"a": n}), n) for n in (1, 2)]
    yield b"\1" + b"".join(slots)
    yield b"\2" + slots[0][:508] + slots[1][:508]
    yield b"\3" + (root / "penstock" / "clean").read_bytes()
    yield b"\4" + (root / "penstock" / "holder").read_bytes()
    yield b"\5" + (root / "penstock" / "geometry.json").read_bytes()


def _tables() -> Iterator[bytes]:
    yield (ground().root / "config" / "consumerOffset.json").read_bytes()
    yield b'{\n\t"offsetTable":{\n\t\t"TopicTest@groupA":{0:250,1:250\n\t\t}\n\t}\n}'
    yield b'{"dataVersion":{"counter":2},"offsetTable":{"a@b":{"0":1},"c@d":{-1 : 2,10: 3}}}'
    yield b'\xef\xbb\xbf{"offsetTable":{"q\\"0:1@g":{0:1e3}}}'


def _configs() -> Iterator[bytes]:
    yield b'\0profile = "rocketmq"\n[flush]\nuse = "sync"\n[flush.sync]\ntimeout_ms = 5\n[log]\nchecksum = "crc32"\n'
    yield b'\0geometry.segment_bytes = 65_536\nindex.use = ["consume-queue"]\nplugins.block = []\n'
    yield b"\1FLUSH__USE=sync\nLOG__BUSY_MS=7\nRETENTION__DISK_RATIO__EARLY_PERCENT=80\n"
    yield b"\2mappedFileSizeCommitLog=1073741824\nflushDiskType=SYNC_FLUSH\ndeleteWhen=04\nfileReservedTime=48\n# c\n"


if __name__ == "__main__":
    main()
