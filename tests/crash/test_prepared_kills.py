"""Kills of a process that prepares messages in several threads while its check-back asks about all of them.

What the outside decided about a message is a line of a file, written before the commit or rollback is called. In the end every
message with a line is finished as it says, every other one is rolled back, and none is there twice.
"""

import random
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.conftest import SMALL
from tests.faults.children import environment
from tests.lanes import SEED, eventually, rounds

import penstock
from penstock.contracts import Prepared
from penstock.errors import PreparedFinishedError

ROOT = Path(__file__).parents[2]
KILLS = rounds(gate=3, night=200)
THREADS = 3
SETTINGS: dict[str, Any] = {
    **SMALL, "extensions.messaging.check_immunity_ms": 0,
    "extensions.messaging.check_interval_ms": 5, "extensions.messaging.checks_max": 1_000_000,
}  # fmt: skip


def decisions(trace: Path) -> dict[str, str]:
    """Return what was decided by body; a kill may have cut the last line of a thread's file."""
    found = {}
    for path in sorted(trace.parent.glob(f"{trace.name}*")):
        for line in path.read_text().split("\n")[:-1]:
            body, decision = line.split()
            found[body] = decision
    return found


def opened(folder: Path, turn: str) -> penstock.Store:
    """Open the store with a check-back that knows everything about earlier processes, and nothing about this one's threads."""
    known = decisions(folder / "trace")

    def check(prepared: Prepared) -> str | None:
        body = prepared.message.body.decode()
        return None if body.startswith(f"{turn}-") else known.get(body, "rollback")

    return penstock.open(folder / "store", environ={}, check_back=check, **SETTINGS)


def main() -> None:
    folder, turn, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    store = opened(folder, turn)

    def work(number: int) -> None:
        chance = random.Random(seed + number)
        with (folder / f"trace-{turn}-{number}").open("a") as trace:
            for count in range(1_000_000):
                body = f"{turn}-{number}-{count}"
                prepared = store.prepare(
                    "orders", body.encode(), group="g", queue=count % 2, wait=False
                )
                decision = chance.choice(("commit", "rollback", "", "commit"))
                if not decision:
                    continue
                trace.write(f"{body} {decision}\n")
                trace.flush()
                with suppress(PreparedFinishedError):
                    prepared.commit() if decision == "commit" else prepared.rollback()
                if chance.random() < 0.05:
                    # The check-backs get time.
                    threading.Event().wait(0.005)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for thread in threads:
        thread.join()


def _has_decided(folder: Path, turn: int, count: int) -> bool:
    return sum(body.startswith(f"{turn}-") for body in decisions(folder / "trace")) >= count


def test_killed_processes_finish_each_prepared_message_once(tmp_path: Path) -> None:
    seed = SEED
    chance = random.Random(seed)
    for turn in range(KILLS):
        command = [sys.executable, "-m", "tests.crash.test_prepared_kills", str(tmp_path), str(turn), str(seed + turn)]  # fmt: skip
        child = subprocess.Popen(
            command, cwd=ROOT, env={**environment(), "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", child.communicate()[1]
            wanted_count = chance.randrange(1, 60)
            eventually(partial(_has_decided, tmp_path, turn, wanted_count))
            child.kill()
    with opened(tmp_path, "end") as store:
        eventually(lambda: not store.prepared(), "all prepared messages are finished")
        found = Counter(message.body.decode() for message in store.scan("orders"))
        assert [finding.text for finding in store.verify()] == []
    wanted = Counter(
        body for body, decision in decisions(tmp_path / "trace").items() if decision == "commit"
    )
    assert wanted
    assert not found - wanted, f"twice, or not to be committed: {found - wanted}"
    assert not wanted - found, f"lost: {wanted - found}"


if __name__ == "__main__":
    main()
