"""One bit of a small store is wrong: what was not hit is read as it was, what was hit is an error or is as it was.

`make test` flips every bit of every record in memory, and a sample of the bits of every file under a whole store,
at night it is every bit of every file.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.damage.stores import Made, find_all, flip, is_at, log_of, make, opened, read_all, told
from tests.lanes import NIGHT, rounds

from penstock.errors import CorruptionError, PenstockError
from penstock.format.columns import RecordColumns
from penstock.format.record import MalformedRecordError, RecordFields, decode_record
from penstock.format.validity import NO_COVERAGE, Coverage, check, is_valid
from penstock.message import StoredMessage

SEALED: dict[str, Any] = {"log.checksum": "crc32+record"}
# Flips a file, spread over the bytes that are not the zeros behind the data.
SAMPLE = rounds(gate=12, night=110)
# Opening for writing costs a copy of the store and a recovery.
SAMPLE_FOR_WRITING = 9

# What of a record no check sees under `log.checksum = "crc32"`, which is RocketMQ's: its CRC covers the body alone.
# Size, magic, CRC, stored log offset and the lengths are seen, since they must fit each other and the place; queue,
# queue offset and topic by readers of a queue, since they must fit the queue's entry. Under "crc32+record" all is seen.
UNCOVERED = {
    "flag", "sys_flag", "born_time_ms", "born_host", "store_time_ms", "store_host", "reconsume_times",
    "prepared_offset", "properties",
}  # fmt: skip
SEEN_BY_PLACE = {"queue", "queue_offset", "topic"}


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module", params=["crc32", "crc32+record"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    settings: dict[str, Any] = {"log.checksum": request.param}
    return make(tmp_path_factory.mktemp("flips") / "store", **settings)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("flips") / "store", **SEALED)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("flips")
    return make(folder / "store", crashed=True, **SEALED)


def checks_agree(record: bytes, log_offset: int, *, is_covered: bool) -> slice | None:
    """Ask both checks of a record; they must say the same."""
    try:
        body = check(record, log_offset, is_covered=is_covered)
    except MalformedRecordError:
        body = None
    coverage = Coverage.of([(0, log_offset + 1)]) if is_covered else NO_COVERAGE
    columns = RecordColumns.parse(record, [0], log_offset)
    by_columns = bool(columns.are_valid(coverage))
    assert by_columns == (body is not None)
    return body


def test_every_bit_of_every_record_is_covered_but_for_the_fields_in_the_table(store: Made) -> None:
    uncovered: set[str] = set()
    is_sealed = any(b"__CRC32#" in record for record in store.records.values())
    for log_offset, whole in store.records.items():
        before = decode_record(whole)
        record = bytearray(whole)
        for bit in range(8 * len(record)):
            record[bit // 8] ^= 1 << bit % 8
            damaged = bytes(record)
            record[bit // 8] ^= 1 << bit % 8
            if int.from_bytes(damaged[:4], "big") != len(damaged):
                assert not is_valid(damaged, log_offset)
                continue
            body = checks_agree(damaged, log_offset, is_covered=is_sealed)
            if body is not None:
                changed = fields_changed(before, decode_record(damaged))
                uncovered |= changed
                is_there = is_at(damaged, before.topic, before.queue, before.queue_offset)
                assert is_there != bool(changed & SEEN_BY_PLACE)
    assert uncovered == (set() if is_sealed else UNCOVERED | SEEN_BY_PLACE)


def fields_changed(before: RecordFields, after: RecordFields) -> set[str]:
    names = {field.name for field in attrs.fields(RecordFields)}
    return {name for name in names if getattr(before, name) != getattr(after, name)}


def bits_of(path: Path, limit: int) -> Iterator[int]:
    """Return all bits of a file, or a sample: most from where there is data, some from the zeros behind."""
    data = path.read_bytes()
    if NIGHT:
        yield from range(8 * len(data))
        return
    chance = random.Random(path.name + path.parent.name)
    used = 8 * len(data.rstrip(b"\0"))
    yield from sorted(chance.sample(range(used), min(limit, used)))
    if 8 * len(data) > used:
        yield from sorted(chance.sample(range(used, 8 * len(data)), limit // 10))


KINDS = ["commitlog", "consumequeue", "index", "checkpoint", "config", "penstock"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_costs_a_reader_at_most_what_it_hit(sealed: Made, kind: str) -> None:
    with opened(sealed.path, read_only=True) as store:
        keys = find_all(store)
    for path in of_kind(sealed, kind):
        for bit in bits_of(path, SAMPLE):
            flip(path, bit)
            try:
                with told(f"bit {bit} of {path}"):
                    look(sealed, path, bit, keys)
            finally:
                flip(path, bit)


def of_kind(made: Made, kind: str) -> list[Path]:
    return [path for path in made.files() if path.relative_to(made.path).parts[0] == kind]


def look(made: Made, path: Path, bit: int, keys: dict[str, list[int]]) -> None:
    """Read everything from a store with one wrong bit."""
    kind = path.relative_to(made.path).parts[0]
    try:
        with opened(made.path, read_only=True) as store:
            found = read_all(store)
            findings = list(store.verify())
            if kind == "index":
                check_keys(keys, find_all(store), has_findings=bool(findings))
            if kind == "config":
                assert len(store.groups()) <= 1, (
                    "JSON has no checksum: a bit may make another number or name"
                )
            if kind == "commitlog":
                offset = int(path.name) + bit // 8
                hit = next(
                    (o for o in made.records if o <= offset < o + len(made.records[o])), None
                )
                if hit is not None:
                    assert any(f.path == path and f.log_offset == hit for f in findings)
                    with pytest.raises(
                        CorruptionError, match=f"{path.name}.* at byte {hit - int(path.name)}"
                    ):
                        store.at(hit)
    except PenstockError as error:
        assert kind in ("config", "penstock"), "all else can be read around"
        assert path.name in str(error)
        return
    check_found(made, found, path, bit, has_findings=bool(findings))


def check_found(
    made: Made, found: dict[int, StoredMessage], path: Path, bit: int, *, has_findings: bool
) -> None:
    assert {o: m.record for o, m in found.items()}.items() <= made.records.items(), (
        "none is altered"
    )
    lost = made.records.keys() - found.keys()
    assert len(lost) <= 1, "one bit costs one message"
    assert not lost or has_findings
    for offset in lost:
        fields = decode_record(made.records[offset])
        if path.parent.name == "commitlog":
            assert offset <= int(path.name) + bit // 8 < offset + fields.size
        else:
            place = f"consumequeue/{fields.topic.decode()}/{fields.queue}/"
            assert place in str(path)
            assert fields.queue_offset == bit // 8 // 20


def check_keys(
    keys: dict[str, list[int]], found: dict[str, list[int]], *, has_findings: bool
) -> None:
    for key, offsets in found.items():
        assert set(offsets) <= set(keys[key]), "a look-up gives no wrong message"
    assert found == keys or has_findings, "what it misses, verify tells"


@pytest.mark.parametrize("kind", KINDS)
def test_opening_for_writing_after_a_flipped_bit_mends_or_refuses_and_cuts_nothing(
    crashed: Made, kind: str, tmp_path: Path
) -> None:
    """The store was killed with all of it flushed: no byte of the log may go, whichever bit is wrong."""
    for original in of_kind(crashed, kind):
        for bit in bits_of(original, SAMPLE_FOR_WRITING):
            made = crashed.copy(tmp_path / "copy")
            path = made.path / original.relative_to(crashed.path)
            flip(path, bit)
            before = log_of(made)
            with told(f"bit {bit} of {path}"):
                write(made, path, bit)
                assert log_of(made) == before


def write(made: Made, path: Path, bit: int) -> None:
    try:
        with opened(made.path, **SEALED) as store:
            found = read_all(store)
            findings = [f for f in store.verify() if f.part != "log"]
            put = store.put("short", b"more", queue=0)
            assert store.at(put.log_offset).body == b"more"
            assert store.read("short", 0, put.queue_offset).messages[0].body == b"more"
    except PenstockError as error:
        assert path.name in str(error)
        return
    is_log = path.parent.name == "commitlog"
    # A tag code, or a field of an index entry, says nothing of a gap: it stays as it is, and verify tells.
    kinds = ("has another tag code", "index")
    left = [
        f
        for f in findings
        if not any(word in (f.text, f.part) or f.text.endswith(word) for word in kinds)
    ]
    assert not left or is_log, "queues and index are mended"
    check_found(made, found, path, bit, has_findings=True)
    assert is_log or len(found) == len(made.records)
