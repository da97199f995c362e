"""Messages that are stored together, on a disk that loses power and in a process that is killed, before each call to the disk.

Whatever survives, each transaction is there whole or not at all, and those before it are there. Read-only openings of what
the crash left show the same.
"""

import itertools
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from tests.conftest import SMALL, messages_in
from tests.lanes import NIGHT, cases

import penstock
from penstock import Message, Store
from penstock.testing import SimulatedDisk
from penstock.testing.kit import InlineWorkers
from penstock.testing.platter import Image, Survival

ROOT = Path("/store")
SETTINGS: dict[str, Any] = {**SMALL, "retention.use": [], "geometry.segment_bytes": 16384}
# How many messages each transaction has, and how long they are: some are in one page, some in many.
SHAPES = [(3, 20), (2, 900), (1, 10), (9, 600), (5, 2000), (30, 100), (4, 3000)]


@attrs.frozen
class Moment:
    """The disk before a call; how many transactions had ended by then, and how many of these were durable."""

    call: str
    image: Image
    ended: int
    durable: int


def opened(disk: SimulatedDisk, **more: Any) -> Store:
    given = {"clock": disk.clock, **SETTINGS, **more}
    if "read_only" not in more:
        given["spawn"] = InlineWorkers()
    return penstock.open(ROOT, files=disk, environ={}, **given)


def told(flush: str, write: str) -> list[Moment]:
    """Store transactions, between plain puts, and keep an image of the disk before each call that changes it."""
    disk = SimulatedDisk(seed=5, write_back=0.1)
    moments: list[Moment] = []
    done = [0, 0]

    def remember(call: str, path: Path) -> None:
        moments.append(Moment(f"{call} {path.name}", disk.image(), *done))

    with opened(disk, flush=flush, write=write) as store:
        disk.plan.watch = remember
        for number, (count, size) in enumerate(SHAPES):
            store.put("plain", b"%d" % number, queue=0)
            body = b"%d %d " % (number, count)
            if number % 2:
                store.put_many([made(body, n, size) for n in range(count)], atomic=True)
            else:
                with store.transaction() as tx:
                    for n in range(count):
                        message = made(body, n, size)
                        tx.put(message.topic, message.body, queue=message.queue)
            done[0] += 1
            if flush == "sync":
                done[1] = done[0]
            elif number % 3 == 2:
                store.flush()
                done[1] = done[0]
            # Dispatches what is there.
            store.max_offset("plain", 0)
        disk.plan.watch = None
    return moments


def made(body: bytes, number: int, size: int) -> Message:
    return Message("abc"[number % 3], (body + b"%d " % number).ljust(size, b"."), queue=number % 2)


def found_in(store: Store) -> list[int]:
    """Return the transactions in the store; fails if there is one of which only a part is there."""
    seen, sizes = Counter[int](), dict[int, int]()
    # Queue by queue: a scan of more of them ends where the killed writer had published all.
    for topic, queue in itertools.product("abc", (0, 1)):
        for message in messages_in(store, topic, queue=queue):
            number, count = map(int, message.body.split()[:2])
            seen[number] += 1
            sizes[number] = count
    assert seen == sizes
    return sorted(seen)


@pytest.mark.parametrize("write", ["mmap", "file", "transient-pool"])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_after_a_crash_before_any_call_each_transaction_is_whole_or_absent(
    flush: str, write: str
) -> None:
    if (flush, write) == ("sync", "transient-pool"):
        pytest.skip("refused: puts that wait gain nothing from a pool")
    moments = told(flush, write)
    seen = Counter[str]()
    states = [(moment, survival) for moment in moments for survival in Survival]
    for at, (moment, survival) in enumerate(cases(states, f"{flush} {write}", of_so_many=10)):
        where = f"{survival.value} before {moment.call}"
        disk = SimulatedDisk.after(moment.image, survival, Random(at))
        with opened(disk, read_only=True) as reader:
            shown = found_in(reader)
            hidden = reader._log.hidden_from is not None
        with opened(disk, flush=flush, write=write) as store:
            assert store.recovery is not None
            seen["cut"] += "stored together" in "".join(store.recovery.mended)
            seen["hidden"] += hidden
            found = found_in(store)
            assert found == [*range(len(found))], where
            assert len(found) >= moment.durable, where
            assert set(shown) <= set(found), where
            assert [each.text for each in store.verify()] == [], where
            with store.transaction() as tx:
                tx.put("a", b"99 2 0", queue=0)
                tx.put("b", b"99 2 1", queue=0)
            assert found_in(store) == [*found, 99], where
        with opened(disk, flush=flush, write=write) as store:
            assert found_in(store) == [*found, 99], where
    # Under `sync` few crashes leave a batch in part.
    assert seen["cut"] > 0 or (flush == "sync" and not NIGHT)
