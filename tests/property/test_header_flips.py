"""One flipped bit of a record's head: no intact message is moved, lost or blamed, and a second repair plans nothing.

In version 0.1 a flipped queue offset was accepted after a crash, `verify` blamed the intact queue, and `repair --apply`
put the record over another message, reported nothing left, and planned the same again each time.
"""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL
from tests.lanes import NIGHT, SEED, cases

import penstock
from penstock.errors import CorruptionError
from penstock.store.store import Store
from penstock.testing.kit import copy_files

SETTINGS: dict[str, Any] = {**SMALL}
# A flip a byte of the head and of the lengths after the body, or of each third, another one for each seed; all of them at night.
HEAD_BYTES = 88
Place = tuple[str, int, int]


def opened(path: Path, **settings: Any) -> Store:
    return penstock.open(path, environ={}, **SETTINGS, **settings)


def make(path: Path, checksum: str) -> dict[int, tuple[Place, bytes]]:
    """Write messages of three queues, mixed; return place and body of each by its log offset."""
    made = {}
    with opened(path, **{"log.checksum": checksum}) as store:
        for number in range(24):
            topic, queue = ("t", number % 2) if number % 3 else ("u", 0)
            body = b"%d of it" % number
            receipt = store.put(topic, body, queue=queue, tag="g", keys=[f"k{number}"])
            made[receipt.log_offset] = ((topic, queue, receipt.queue_offset), body)
    return made


def messages(path: Path) -> dict[Place, bytes]:
    found = {}
    with opened(path, read_only=True) as store:
        for topic, queues in store.topics(system=True).items():
            for queue in queues:
                for message in store.scan(topic, queue=queue):
                    found[topic, queue, message.queue_offset] = message.body
    return found


def flips(body: bytes) -> list[tuple[int, int]]:
    """Return bytes of a record and bits of them."""
    chance, after = random.Random(SEED), HEAD_BYTES + len(body)
    # Of the length of the topic last.
    found = [*range(HEAD_BYTES), after, after + 2, after + 3, after + 1]
    return [(byte, bit) for byte in found for bit in (range(8) if NIGHT else [chance.randrange(8)])]


def flip(path: Path, at: int, bit: int) -> None:
    """Turn over one bit of the log; the file's time says so."""
    with next((path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ 1 << bit]))


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_flip_costs_at_most_the_message_that_it_hit(
    which: str, checksum: str, tmp_path: Path
) -> None:
    store, path = tmp_path / "store", tmp_path / "flipped"
    made = make(store, checksum)
    before = messages(store)
    assert len(before) == len(made)
    offset = sorted(made)[{"first": 0, "middle": 11, "last": -1}[which]]
    hit, body = made[offset]
    others = {place: text for place, text in before.items() if place != hit}
    found = flips(body)
    for byte, bit in found if NIGHT else cases(found, f"{which} {checksum}"):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(store, path)
        flip(path, offset + byte, bit)
        check(path, hit, others, checksum, f"byte {byte} bit {bit} of the record at {offset}")


def check(path: Path, hit: Place, others: dict[Place, bytes], checksum: str, story: str) -> None:
    found = messages(path)
    assert {p: b for p, b in found.items() if p != hit} == others, story
    with opened(path, read_only=True) as store:
        findings = [f for f in store.verify(deep=True) if not f.is_note]
    assert all(f.part in ("log", "index", "marks", "copy") for f in findings), (
        f"{story}: the queue is blamed"
    )
    assert checksum == "crc32" or findings, f"{story}: not seen"
    penstock.repair(path, apply=True, environ={}, **SETTINGS)
    repaired = messages(path)
    assert {p: b for p, b in repaired.items() if p != hit} == others, f"{story}: after a repair"
    assert penstock.repair(path, environ={}, **SETTINGS).steps == (), (
        f"{story}: a second repair plans"
    )


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
def test_after_a_crash_no_flipped_offset_is_accepted(checksum: str, tmp_path: Path) -> None:
    """A bit of a queue offset that nobody vouches for: refused or cut, never taken as it stands."""
    live, killed, path = tmp_path / "live", tmp_path / "killed", tmp_path / "flipped"
    with opened(live, flush="none", **{"log.checksum": checksum}) as store:
        places = [store.put("t", b"%d" % n, queue=0) for n in range(12)]
        copy_files(live, killed)
    for number in (3, 10, 11):
        for bit in range(64):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(killed, path)
            flip(path, places[number].log_offset + 20 + bit // 8, bit % 8)
            if number < 11:
                with pytest.raises(CorruptionError) as caught, opened(path):
                    pass
                assert caught.value.position == places[number].log_offset
                continue
            with opened(path) as store:
                assert store.recovery is not None
                assert store.recovery.cut_bytes
                assert [m.body for m in store.scan("t")] == [b"%d" % n for n in range(number)]
                assert store.put("t", b"next", queue=0).queue_offset == number
