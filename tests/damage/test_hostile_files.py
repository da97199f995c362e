"""Files made to harm: no look-up without end, no memory beyond the file's size and a constant, no foreign error.

Loops are bounded by counting what is read through `Files`, memory by what Python allocates; neither depends on time.
"""

import json
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.damage.stores import Made, find_all, make, opened, read_all
from tests.lanes import rounds
from tests.unit.recovery.losses import poke

import penstock
from penstock import _kernel
from penstock.config.broker_conf import from_broker_conf
from penstock.errors import ConfigError, CorruptionError, PenstockError, StoreLockedError
from penstock.files import File, Files
from penstock.format.record import MAGIC_V1, RecordFields, encode_record
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.format.validity import is_valid
from penstock.store.consumer_offsets import ConsumerOffsets

# What the readers keep beside the file: windows, columns, the modules that are loaded at the first use.
MEMORY_CONSTANT = 16 << 20


class CountedFile(File):
    """Counts reads and their bytes."""

    def __init__(self, path: Path, descriptor: int, counts: "CountedFiles") -> None:
        super().__init__(path, descriptor)
        self._counts = counts

    def pread(self, size: int, position: int) -> bytes:
        self._counts.reads += 1
        data = super().pread(size, position)
        self._counts.bytes += len(data)
        return data


class CountedFiles(Files):
    """The file system, with a limit on how often it may be asked."""

    def __init__(self) -> None:
        self.reads = 0
        self.bytes = 0

    def open(self, path: Path, *, writable: bool = False) -> File:
        return CountedFile(path, super().open(path, writable=writable).detach(), self)


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("hostile") / "store")


@pytest.fixture
def made(whole: Made, tmp_path: Path) -> Made:
    return whole.copy(tmp_path / "store")


def measured(run: Callable[[], object]) -> int:
    """Return the greatest number of bytes that Python held while this ran."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


ENTRIES, SLOTS = 64, 8
ENTRIES_AT = 40 + 4 * SLOTS


def chain(file: Path, previous: Callable[[int], int], slot: int) -> None:
    """Give every entry the same hash and a predecessor, and every slot an entry."""
    for number in range(1, ENTRIES):
        poke(file, ENTRIES_AT + 20 * number + 16, struct.pack(">I", previous(number) & 0xFFFFFFFF))
    for number in range(SLOTS):
        poke(file, 40 + 4 * number, struct.pack(">I", slot & 0xFFFFFFFF))


CHAINS: dict[str, Callable[[int], int]] = {
    "itself": lambda n: n,
    "a loop of two": lambda n: n ^ 1,
    "a loop of three": lambda n: n + 1 if n % 3 else n - 2,
    "the next": lambda n: n + 1,
    "the last": lambda n: ENTRIES - 1,
    "behind the file": lambda n: ENTRIES,
    "2^31 - 1": lambda n: (1 << 31) - 1,
    "-1": lambda n: -1,
    "-2^31": lambda n: -(1 << 31),
    "all before it": lambda n: n - 1,
}


@pytest.mark.parametrize("slot", [1, ENTRIES - 1, ENTRIES, (1 << 31) - 1, -1])
@pytest.mark.parametrize("kind", CHAINS)
def test_a_hostile_chain_is_followed_no_further_than_there_are_entries(
    made: Made, kind: str, slot: int
) -> None:
    file = next((made.path / "index").iterdir())
    chain(file, CHAINS[kind], slot)
    for count in (ENTRIES, ENTRIES + 1, (1 << 31) - 1):
        poke(file, 36, struct.pack(">i", count))
        files = CountedFiles()
        with opened(made.path, read_only=True, files=files) as store:
            before = files.reads
            for key in ("same", "key-3"):
                assert all(key in message.keys for message in store.find(key, "short"))
            # A slot, a header, and for each entry itself and a record of two reads.
            assert files.reads - before <= 2 * (2 + 3 * ENTRIES)
            assert any(finding.part == "index" for finding in store.verify())


@pytest.mark.parametrize("name", ["9" * 20, "9223372036854775800", f"{1 << 60:020d}", "1" * 60])
@pytest.mark.parametrize("content", [b"\0\0\0\0\0\0\0\0\0\0\0\xff", b"\x7f" * 320, b""])
def test_a_queue_file_with_a_name_far_out_costs_no_endless_search(
    made: Made, name: str, content: bytes
) -> None:
    """A reader went on in steps of 512 entries to the next file there was: for 2^58 entries."""
    number = int(name) - int(name) % 320
    file = made.path / "consumequeue" / "short" / "0" / f"{number:020d}"
    file.write_bytes(content.ljust(320, b"\0"))
    files = CountedFiles()
    with opened(made.path, read_only=True, files=files) as store:
        assert set(read_all(store)) == made.records.keys()
        store.offset_at("short", 0, 1 << 35)
        store.space()
        list(store.verify())
        assert store.to_arrow("short", queue=0, stop=16).num_rows > 0
    assert files.reads < 3000


def test_a_missing_queue_file_hides_no_message_of_the_next(tmp_path: Path) -> None:
    """The search behind a missing file went in steps, and began reading where a step landed, not where the file begins."""
    sizes: dict[str, Any] = {"geometry.queue_entries": 5}
    with opened(tmp_path / "store", **sizes) as store:
        store.put_many([penstock.Message("t", b"%d" % n, queue=0) for n in range(33)])
    (tmp_path / "store" / "consumequeue" / "t" / "0" / f"{5 * 20:020d}").unlink()
    expected = [b"%d" % n for n in range(33) if n // 5 != 1]
    with opened(tmp_path / "store", read_only=True) as store:
        assert [m.body for m in store.scan("t")] == expected
        assert store.read("t", 0, 5).next_offset == 10
        assert store.to_arrow("t", queue=0).column("body").to_pylist() == expected
        assert store.space()[0].messages == len(expected)


@pytest.mark.parametrize("far", [1 << 40, (1 << 62) + 5, 3])
def test_an_entry_that_points_astray_ends_no_queue(made: Made, far: int) -> None:
    """A scan of several queues took an entry beyond the log's end for the end of its queue."""
    poke(made.path / "consumequeue" / "short" / "1" / f"{0:020d}", 20, struct.pack(">q", far))
    with opened(made.path, read_only=True) as store:
        assert len(read_all(store)) == len(made.records) - 1


def test_an_entry_gives_no_message_of_another_place(made: Made) -> None:
    """An entry that points to a sound record of another queue gave that record."""
    files = [made.path / "consumequeue" / "short" / str(n) / f"{0:020d}" for n in (0, 1)]
    poke(files[0], 40, files[1].read_bytes()[20:40])
    with opened(made.path, read_only=True) as store:
        assert [m.queue for m in store.read("short", 0, 0).messages].count(1) == 0
        assert set(store.to_arrow("short", ["queue"], queue=0)["queue"].to_pylist()) == {0}
        assert len(read_all(store)) == len(made.records) - 1


@pytest.mark.parametrize("size", [0, 1, 7, 90])
def test_the_last_entry_with_a_size_below_a_record_is_damage_for_arrow(
    made: Made, size: int
) -> None:
    """The columns were read behind the window's end: an IndexError."""
    file = made.path / "consumequeue" / "short" / "0" / f"{0:020d}"
    last = len(file.read_bytes().rstrip(b"\0")) // 20
    poke(file, 20 * last + 8, struct.pack(">i", size))
    with opened(made.path, read_only=True) as store:
        if size:
            with pytest.raises(CorruptionError):
                store.to_arrow("short", queue=0)
        else:
            assert store.to_arrow("short", queue=0).num_rows == last


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield segments that claim more than there is."""
    size = rounds(gate=1 << 18, night=1 << 20)
    head = struct.pack(">ii", size, MAGIC_V1)
    yield "one record over all", head.ljust(size, b"\0")
    yield "a head every eight bytes", head * (size // 8)
    record = encode_record(RecordFields(topic=b"t", body=b"x" * 100))
    for what, at, value in (
        ("a body of 2^31 - 1", 84, (1 << 31) - 1), ("a negative body", 84, -5), ("a size of 0", 0, 0),
        ("a size of 2^31 - 1", 0, (1 << 31) - 1), ("a size of -2^31", 0, -(1 << 31)), ("a size of 1", 0, 1),
    ):  # fmt: skip
        yield what, (record[:at] + struct.pack(">i", value) + record[at + 4 :]).ljust(size, b"\0")
    claims = b"".join(
        struct.pack(">ii20xq", size - at, MAGIC_V1, at) + bytes(4)
        for at in range(0, size - 200, 40)
    )
    yield "a head of the right place every forty bytes", claims.ljust(size, b"\0")


@pytest.mark.parametrize(
    ("what", "data"), list(bombs()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_hostile_segment_makes_no_more_memory_than_it_is_long(
    tmp_path: Path, what: str, data: bytes
) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(data)
    files = CountedFiles()

    def look() -> None:
        with opened(tmp_path, read_only=True, files=files) as store:
            list(store.verify())
            for offset in (0, 8, 40, 1 << 19):
                with pytest.raises(PenstockError):
                    store.at(offset)

    look()
    assert files.bytes < 40 * len(data), "no place is read again and again"
    assert measured(look) < len(data) + MEMORY_CONSTANT


def test_a_short_file_with_a_huge_claim_is_not_filled_up(tmp_path: Path) -> None:
    """A segment that was cut reads as zeros behind its end; not so far that a claimed size makes the memory."""
    (tmp_path / "commitlog").mkdir()
    for base, size in ((0, 64 << 20), (64 << 20, 4096)):
        with (tmp_path / "commitlog" / f"{base:020d}").open("wb") as file:
            file.truncate(size)
    poke(tmp_path / "commitlog" / f"{64 << 20:020d}", 0, struct.pack(">ii", 60 << 20, MAGIC_V1))

    def look() -> None:
        with (
            opened(tmp_path, read_only=True) as store,
            pytest.raises(CorruptionError, match="end of the file"),
        ):
            store.at(64 << 20)

    look()
    assert measured(look) < MEMORY_CONSTANT


def test_scans_of_hostile_sizes_end() -> None:
    for size in (0, 1, 8, 90, 91, -1, (1 << 31) - 1, -(1 << 31)):
        window = struct.pack(">ii", size, MAGIC_V1) * 4000
        rows, stop, _, claimed = _kernel.scan(window, 0, _kernel.CRC, b"")
        assert (rows, stop, claimed) == (b"", 0, size)


JSON = {
    "empty": b"", "brace": b"{", "array": b"[]", "number": b"7", "null": b"null", "bom alone": b"\xef\xbb\xbf",
    "deep": b"[" * 100_000, "deep table": b'{"offsetTable":' * 10_000, "no UTF-8": b"\xff\xfe\x00",
    "list": b'{"offsetTable":[1,2]}',
    "open text": b'{"a":"' + b"\\" * 99_999, "quotes": b'{"' + b'\\"' * 200_000, "bare": b"{" + b"1" * 200_000,
    "words": b"{" + b"1 " * 200_000, "spaces": b"{1" + b" " * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("kind", JSON)
def test_hostile_json_is_an_error_that_names_the_file(made: Made, kind: str) -> None:
    path = made.path / "config" / "consumerOffset.json"
    path.write_bytes(JSON[kind])

    def look() -> None:
        with (
            opened(made.path, read_only=True) as store,
            pytest.raises(CorruptionError, match=path.name),
        ):
            store.groups()

    look()
    assert measured(look) < 12 * len(JSON[kind]) + MEMORY_CONSTANT
    path.with_name(path.name + ".bak").write_bytes(b'{"offsetTable":{"t@g":{0:5}}}')
    with opened(made.path, read_only=True) as store:
        assert [each[:4] for each in store.groups()] == [("g", "t", 0, 5)], (
            "the copy is read where the file cannot be"
        )


def test_json_of_many_quotes_takes_no_squared_time() -> None:
    """Each quote of an unended string was tried again as the start of one: 2 MB took hours. Now it is one pass."""
    for text in ('{"' + '\\"' * 1_000_000, '{"a":' + '"\\' * 1_000_000, "{" + '1 "' * 500_000):
        with pytest.raises(ValueError, match=r"[Ee]xpecting|[Uu]nterminated|[Ii]nvalid|delimiter"):
            parse_rocketmq_json(text)


def test_both_forms_of_json_may_repeat_keys() -> None:
    found = parse_rocketmq_json('{"t":{0:1,"0":2,-1:3, 7 :4},"x":"{0:1}\\"{2:"}')
    assert found == {"t": {"0": 2, "-1": 3, "7": 4}, "x": '{0:1}"{2:'}


def test_a_table_over_the_limit_is_refused_unread(made: Made) -> None:
    """100 MB of it: the error was an OSError that named no table."""
    path = made.path / "config" / "consumerOffset.json"
    os.truncate(path, 100 << 20)
    offsets = ConsumerOffsets(Files(), made.path, read_only=True)

    def look() -> None:
        with pytest.raises(CorruptionError, match="limit"):
            offsets.groups()

    assert measured(look) < MEMORY_CONSTANT


@pytest.mark.parametrize("name", ["geometry.json", "clean"])
def test_marks_with_infinite_numbers_are_not_believed(made: Made, name: str) -> None:
    """JSON has infinity, and `int` of it is an OverflowError that nothing caught."""
    path = made.path / "penstock" / name
    about = json.loads(path.read_bytes())
    path.write_text(
        json.dumps({key: 1e999 if isinstance(about[key], int) else about[key] for key in about})
    )
    if name == "geometry.json":
        with pytest.raises(CorruptionError, match=r"geometry\.json"), opened(made.path):
            pass
        return
    with opened(made.path) as store:
        assert len(read_all(store)) == len(made.records)


@pytest.mark.parametrize(
    ("key", "value"),
    [("queue_entries", 12), ("queue_entries", 8), ("segment_bytes", 8192), ("index_slots", 9)],
)
def test_a_noted_size_that_no_file_has_is_damage(made: Made, key: str, value: int) -> None:
    """One wrong digit in queue_entries, and a reader passed over all queue files: an empty store, and no word."""
    path = made.path / "penstock" / "geometry.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {key: value}))
    try:
        with opened(made.path, read_only=True) as store:
            assert len(read_all(store)) == len(made.records)
            find_all(store)
            list(store.verify())
    except CorruptionError as error:
        assert "geometry.json" in str(error)


def test_a_holder_of_any_length_does_not_hide_that_the_store_is_locked(made: Made) -> None:
    """A holder file over 4096 bytes made the refusal an OSError about its length."""
    with opened(made.path):
        (made.path / "penstock" / "holder").write_bytes(b"x" * 5000)
        with pytest.raises(StoreLockedError), opened(made.path):
            pass


TOML = {
    "deep keys": b".".join([b"a"] * 3000) + b" = 1", "digits": b"log.busy_ms = " + b"9" * 5000,
    "deep list": b"a = " + b"[" * 50_000, "profile list": b'profile = ["a"]', "profile table": b"[profile.a]\nb = 1",
    "nan": b"log.busy_ms = nan", "bom": b"\xef\xbb\xbfprofile = 1", "twice": b"a = 1\na = 2", "bytes": b"\xff\xfe",
    "inline": b"log = {busy_ms = {a = 1}}", "wide": b"log.busy_ms = [" + b"1," * 100_000 + b"]", "array": b"[[log]]\na = 1",
}  # fmt: skip


@pytest.mark.parametrize("kind", TOML)
def test_hostile_toml_is_a_config_error(tmp_path: Path, kind: str) -> None:
    """Deep dotted keys ended in a RecursionError, 5,000 digits in a ValueError, a list as profile in a TypeError."""
    path = tmp_path / "penstock.toml"
    path.write_bytes(TOML[kind])
    with pytest.raises(ConfigError):
        penstock.open(tmp_path / "store", config=path, environ={})
    assert not (tmp_path / "store").exists()


def test_a_number_of_5000_digits_in_the_environment_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        penstock.open(tmp_path / "store", environ={"PENSTOCK_LOG__BUSY_MS": "9" * 5000})


@pytest.mark.parametrize(
    "key",
    ["maxMessageSize", "fileReservedTime", "mappedFileSizeConsumeQueue", "diskMaxUsedSpaceRatio"],
)
def test_a_broker_conf_without_a_number_names_the_key(key: str) -> None:
    """It was a bare ValueError."""
    with pytest.raises(ConfigError, match=key):
        from_broker_conf(f"{key}=many")


def test_a_topic_length_over_127_is_negative_for_every_check() -> None:
    """The quick check read it without a sign, and a record that none could decode was handed out."""
    record = encode_record(
        RecordFields(topic=b"t" * 100, body=b"x", properties=b"a\1" + b"b" * 200)
    )
    at = record.index(b"t" * 100) - 1
    hostile = record[:at] + bytes([200]) + record[at + 1 :]
    cut = at + 1 + 200
    hostile = hostile[:cut] + (len(hostile) - cut - 2).to_bytes(2, "big") + hostile[cut + 2 :]
    assert not is_valid(hostile, 0)
