"""A body that holds a whole valid record with its own future log offset, and a copy of it that was cut short.

In version 0.1 the inner record was taken for a survivor: opening was refused as corruption, and `repair --apply` added
it as a message of another topic.
"""

import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import SMALL, messages_in
from tests.lanes import NIGHT, SEED, cases

import penstock
from penstock import Message
from penstock.errors import CorruptionError
from penstock.format.record import RecordFields, encode_record, record_size, reserve_crc_property
from penstock.store.store import Store
from penstock.testing import ManualWorkers
from penstock.testing.kit import copy_files

FORMS = ("within", "at the end", "up to the outer end")
WAYS = ("mapped", "file", "batch")
SETTINGS: dict[str, Any] = {**SMALL}
CHECKSUMS = ("crc32", "crc32+record")
MADE = cases(itertools.product(FORMS, WAYS, CHECKSUMS), of_so_many=3)
FILLING = b"f" * 700
# Bytes of size, magic, stored log offset and body length.
HEAD = (0, 1, 2, 3, 5, 30, 84, 85, 86, 87)


class Made(NamedTuple):
    """A store as a kill leaves it right after the outer record was written; nothing after `start` is synced."""

    path: Path
    start: int
    size: int
    bodies: list[bytes]
    inner: int


def opened(path: Path, **settings: Any) -> Store:
    return penstock.open(path, environ={}, **SETTINGS, **settings)


def inner_record(at: int, form: str, checksum: str, tail: bytes) -> bytes:
    """Return a record that begins at log offset `at`, and continues its own queue."""
    fields = RecordFields(
        topic=b"other", body=b"never put", log_offset=at, born_time_ms=7, store_time_ms=1 << 41
    )
    if form != "up to the outer end":
        return encode_record(fields, crc_property=checksum == "crc32+record")
    # Its properties are what follows it in the outer record.
    whole = encode_record(RecordFields(**{
        **{name: getattr(fields, name) for name in ("topic", "body", "log_offset", "born_time_ms", "store_time_ms")},
        "properties": tail,
    }))  # fmt: skip
    return whole[: len(whole) - len(tail)]


def make(
    tmp_path: Path,
    form: str,
    way: str,
    checksum: str,
    *,
    is_last: bool = True,
    is_queued: bool = False,
) -> Made:
    live, copy = tmp_path / "live", tmp_path / "made"
    writer = "file" if way == "file" else "mmap"
    workers = ManualWorkers()
    settings = {"flush": "none", "write.use": writer, "log.checksum": checksum, **SETTINGS}
    with penstock.open(live, environ={}, spawn=workers, **settings) as store:
        bodies = [b"first" * 20, b"second"]
        for body in bodies:
            store.put("t", body, queue=0)
        store.flush()
        third = store.put("t", b"third", queue=0)
        start = third.log_offset + third.size
        bodies.append(b"third")
        text = reserve_crc_property(b"") if checksum == "crc32+record" else b""
        tail = b"\x01t" + len(text).to_bytes(2, "big") + text
        inner_at = start + 88 + len(FILLING)
        inner = inner_record(inner_at, form, checksum, tail)
        body = FILLING + inner + (FILLING if form == "within" else b"")
        if way == "batch":
            receipt = store.put_many(
                [Message("t", body, queue=0), Message("t", b"with it", queue=0)]
            )[0]
            bodies += [body, b"with it"]
        else:
            receipt = store.put("t", body, queue=0)
            bodies.append(body)
        assert receipt.log_offset == start
        assert receipt.size == record_size(RecordFields(topic=b"t", body=body, properties=text))
        if not is_last:
            store.put("t", b"after it", queue=0)
            bodies.append(b"after it")
        if is_queued:
            workers.run("penstock-follow")
        copy_files(live, copy)
    return Made(copy, start, receipt.size, bodies, inner_at)


def spoilt(made: Made, tmp_path: Path, name: str, edits: list[tuple[int, bytes]]) -> Path:
    path = tmp_path / f"spoilt-{name}"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(made.path, path)
    with next((path / "commitlog").iterdir()).open("r+b") as file:
        for at, data in edits:
            file.seek(at)
            file.write(data)
    return path


def log_of(made: Made) -> bytes:
    return next((made.path / "commitlog").iterdir()).read_bytes()


def check(path: Path, made: Made, *, hit: int, may_refuse: bool) -> None:
    """Nothing shows the inner record, whoever looks; what was not hit is there."""
    before = [body for number, body in enumerate(made.bodies) if number < hit]
    with opened(path, read_only=True) as store:
        assert "other" not in store.topics()
        # Before the next writer queues have what the last one got to them.
        assert all(m.body in made.bodies for m in messages_in(store, "t"))
    copy = path.with_name(f"{path.name}-repaired")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    penstock.repair(copy, apply=True, environ={}, **SETTINGS)
    with opened(copy, read_only=True) as store:
        assert "other" not in store.topics()
        assert [m.body for m in store.scan("t")][: len(before)] == before
    assert not penstock.repair(copy, environ={}, **SETTINGS).steps
    try:
        with opened(path) as store:
            assert "other" not in store.topics()
            assert [m.body for m in store.scan("t")][: len(before)] == before
            store.put("t", b"goes on", queue=0)
            assert not [f for f in store.verify(deep=True) if not f.is_note]
    except CorruptionError:
        assert may_refuse


@pytest.mark.parametrize(("form", "way", "checksum"), MADE)
def test_a_copy_cut_short_at_any_byte_is_a_torn_tail(
    form: str, way: str, checksum: str, tmp_path: Path
) -> None:
    made = make(tmp_path, form, way, checksum)
    end = made.inner + 200
    chosen = {1, 8, made.inner - made.start, *(at - made.start for at in inner_ends(made))}
    others = {3, 4, 7, 40, 88, made.size - 1, made.size - 21, *range(100, end - made.start, 701)}
    total = len(log_of(made))
    cuts = sorted(c for c in chosen | others if 0 < c < made.size)
    for cut in cases(cuts, f"{form} {way} {checksum}", always=chosen):
        # Of a batch nothing after the record that was cut is there either.
        edits = [(made.start + cut, bytes(total - made.start - cut))]
        check(spoilt(made, tmp_path, "cut", edits), made, hit=3, may_refuse=False)


def inner_ends(made: Made) -> Iterator[int]:
    size = int.from_bytes(log_of(made)[made.inner : made.inner + 4], "big")
    yield from (made.inner + size, made.inner + size - 1, made.inner + size + 1)


@pytest.mark.parametrize(("form", "way", "checksum"), MADE)
def test_a_first_sector_that_never_reached_the_disk_is_a_torn_tail(
    form: str, way: str, checksum: str, tmp_path: Path
) -> None:
    made = make(tmp_path, form, way, checksum)
    sector_end = -(-(made.start + 1) // 512) * 512
    edits = [(made.start, bytes(sector_end - made.start))]
    check(spoilt(made, tmp_path, "sector", edits), made, hit=3, may_refuse=False)
    # And cut short as well, right behind the inner record.
    for cut in inner_ends(made):
        both = [*edits, (cut, bytes(max(made.start + made.size - cut, 0) + 400))]
        check(spoilt(made, tmp_path, "both", both), made, hit=3, may_refuse=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_queued", [False, True])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("form", FORMS)
def test_no_flipped_bit_of_the_head_makes_a_message_of_the_inner_record(
    form: str, checksum: str, is_last: bool, is_queued: bool, tmp_path: Path
) -> None:
    """Whether its entry is in its queue decides what can be told; a flag of a transaction was found by `verify` only."""
    made = make(tmp_path, form, "mapped", checksum, is_last=is_last, is_queued=is_queued)
    log = log_of(made)
    chance = random.Random(f"{SEED} {form} {checksum} {is_last}")
    fields = [range(4), range(4, 8), range(8, 12), range(28, 36), range(36, 40), range(84, 88)]
    found = []
    for field in fields:
        # Of each byte one bit of a seed's choice, or all of them.
        bits = range(8) if NIGHT else [chance.randrange(8)]
        found += [(made.start + byte, bit) for byte in field for bit in bits]
    for at, bit in found if NIGHT else cases(found, f"{form} {checksum} {is_last}"):
        edits = [(at, bytes([log[at] ^ 1 << bit]))]
        check(spoilt(made, tmp_path, "flip", edits), made, hit=3, may_refuse=not is_last)


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("form", FORMS)
def test_queues_built_again_from_a_corrupt_log_hold_no_inner_record(
    form: str, checksum: str, tmp_path: Path
) -> None:
    """No queue entry is left to say what was a message, and the record is in the middle of the log."""
    made = make(tmp_path, form, "mapped", checksum, is_last=False)
    log = log_of(made)
    heads = [(made.start + byte, bytes([log[made.start + byte] ^ 0x10])) for byte in HEAD]
    # The whole head lost: nothing says any more where the outer record ends. Where records have no CRC of their own,
    # one that ends where the outer one does cannot be told from a message then.
    lost = (
        [] if (form, checksum) == ("up to the outer end", "crc32") else [(made.start, b"\xee" * 88)]
    )
    for edit in heads + lost:
        path = spoilt(made, tmp_path, "lost", [edit])
        shutil.rmtree(path / "consumequeue")
        shutil.rmtree(path / "index", ignore_errors=True)
        report = penstock.repair(path, apply=True, environ={}, **SETTINGS)
        assert report.standing
        with opened(path, read_only=True) as store:
            assert list(store.topics()) == ["t"]
            assert [m.body for m in store.scan("t")] == [*made.bodies[:3], *made.bodies[4:]]
        assert not penstock.repair(path, environ={}, **SETTINGS).steps
