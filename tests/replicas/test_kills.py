"""kill -9 of a real master and of a real copy, and promotions: nothing is lost that a receipt has promised."""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.faults.children import environment
from tests.lanes import SEED, rounds

import penstock

MASTER = """
import sys
import time
import penstock
path, first = sys.argv[1], int(sys.argv[2])
settings = {"replicate.ha.listen": "127.0.0.1:0", "replicate.ha.in_sync_replicas": 2, "geometry.segment_bytes": 65536,
            "replicate.ha.heartbeat_ms": 50}
with penstock.open(path, flush="sync", replicate="ha", **settings) as store:
    address = ""
    while not address:
        address = store.stats()["replica"].get("listen", "")
    print(address, flush=True)
    for number in range(first, 1 << 40):
        receipt = store.put("t", b"%d:" % number + bytes(number * 37 % 900), queue=0)
        print(number, receipt.durability == "on disk here and there", flush=True)
        if receipt.status != "PUT_OK":
            time.sleep(0.01)
"""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python process, and kill it in the end."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def following(path: Path, address: str) -> tuple[str, ...]:
    return ("-m", "penstock", "replica", "follow", str(path), "--from", address, "--cut", "--set", "flush.use=sync")  # fmt: skip


def promised(lines: IO[bytes], count: int) -> tuple[int, int]:
    """Read a master's lines until so many puts are promised; return the last number put, and the last one promised."""
    number = last = -1
    while count:
        words = lines.readline().split()
        number = int(words[0])
        if words[1] == b"True":
            count, last = count - 1, number
    return number, last


@pytest.mark.parametrize("part", range(rounds(gate=1, night=8)))
def test_a_promoted_copy_has_all_that_was_promised_and_the_old_master_follows_it(
    tmp_path: Path, part: int
) -> None:
    chance = random.Random(f"{SEED} {part}")
    master, copy, count = tmp_path / "0", tmp_path / "1", 0
    for round_ in range(1, rounds(gate=2, night=25) + 1):
        with running("-c", MASTER, str(master), str(count)) as writer:
            assert writer.stdout is not None
            address = writer.stdout.readline().decode().strip()
            with running(*following(copy, address)):
                promised(writer.stdout, chance.randint(1, 60))
            # Killed, and there again: from then on it has all.
            with running(*following(copy, address)) as follower:
                _, last = promised(writer.stdout, chance.randint(1, 60))
                writer.kill()
                rest = writer.stdout.read().split(b"\n")[:-1]
                last = max([last, *(int(line.split()[0]) for line in rest if line.endswith(b"True"))])  # fmt: skip
                with running("-m", "penstock", "replica", "promote", str(copy)) as promotion:
                    assert promotion.wait() == 0
                assert follower.wait() == 0
        with penstock.open(copy, environ={}) as store:
            numbers = [int(message.body.partition(b":")[0]) for message in store.scan("t")]
            assert numbers == [*range(len(numbers))]
            assert len(numbers) > last, f"round {round_}: {last} was promised of {len(numbers)}"
            assert not [each for each in store.verify() if not each.is_note]
        # What only the old master has is cut when it follows the new one.
        master, copy, count = copy, master, len(numbers)
    with pytest.raises(penstock.StorageError, match="no copy"):
        penstock.promote(master, environ={})
