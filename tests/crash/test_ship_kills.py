"""kill -9 of a store that is being shipped, again and again: what is restored is the log up to the manifest's end."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.conftest import kills
from tests.crash.writer import body
from tests.faults.children import environment
from tests.shipped import log_bytes

import penstock
from penstock_replicate.ship.restoring import restore
from penstock_replicate.ship.ship_errors import ArchiveError

ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).parent / "ship_writer.py"
KILLS = kills(100)


def run_and_kill(path: Path, archive: Path, start: int, seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), str(archive), str(start)],
        stdout=subprocess.PIPE, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline(), "the writer did not begin"
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    process.stdout.read()
    process.wait()
    timer.join()
    process.stdout.close()


def count_of(path: Path) -> int:
    """Recover the store, and return the number of its messages."""
    with penstock.open(path, environ={}) as store:
        found = [m.body for m in sorted(store.scan("t"), key=lambda m: m.log_offset)]
    assert found == [body(number) for number in range(len(found))]
    return len(found)


def test_a_killed_shipper_leaves_what_can_be_restored(tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    chance = random.Random(seed)
    path, archive, restored, count = tmp_path / "store", tmp_path / "archive", 0, 0
    for number in range(KILLS):
        run_and_kill(path, archive, count, chance.uniform(0.0, 0.4))
        copy = tmp_path / f"copy-{number}"
        try:
            report = restore(str(archive), copy)
        except ArchiveError:
            # Killed before its first manifest.
            assert restored == 0
        else:
            # No less than before, and a beginning of the log, byte for byte.
            assert report.archive_end >= restored
            restored = report.archive_end
            assert report.log_end == report.archive_end
            assert not report.findings
            wanted = log_bytes(path, 0, restored)
            assert log_bytes(copy, 0, restored) == wanted
            with penstock.open(copy, read_only=True, environ={}) as store:
                ends = {queue: store.max_offset("t", queue) for queue in store.topics().get("t", [])}  # fmt: skip
                for queue, end in ends.items():
                    assert (store.committed_offset("g", "t", queue) or 0) <= end
        count = count_of(path)
    assert restored > 0
