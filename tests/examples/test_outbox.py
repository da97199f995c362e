"""The outbox of `examples/outbox`: its processes are killed at random, and every order has its message, once."""

import random
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.lanes import SEED, eventually, rounds

import penstock
from penstock.contracts import Prepared

EXAMPLE = Path(__file__).parents[2] / "examples" / "outbox" / "outbox.py"
KILLS = rounds(gate=2, night=120)
LIMIT_S = 120
AT_ONCE: dict[str, Any] = {"extensions.messaging.check_immunity_ms": 0}


def rows(folder: Path) -> Counter[str]:
    with closing(sqlite3.connect(folder / "orders.db")) as connection:
        return Counter(item for (item,) in connection.execute("SELECT item FROM orders"))


def finished(folder: Path) -> Counter[str]:
    """Let the check-back finish what is open, as the example's own does, without its six seconds."""

    def check(prepared: Prepared) -> str:
        with closing(sqlite3.connect(folder / "orders.db")) as connection:
            query = "SELECT 1 FROM orders WHERE id = ?"
            found = connection.execute(query, (prepared.transaction_id,)).fetchone()
        return "commit" if found else "rollback"

    with penstock.open(folder / "messages", check_back=check, **AT_ONCE) as store:
        eventually(lambda: not store.prepared(), "all prepared messages are finished")
        return Counter(message.body.decode() for message in store.scan("orders"))


def test_every_order_has_its_message_whenever_the_process_is_killed(tmp_path: Path) -> None:
    seed = SEED
    chance = random.Random(seed)
    said: set[str] = set()
    for turn in range(KILLS):
        names = [f"{turn}-{number}" for number in range(300)]
        child = subprocess.Popen(
            [sys.executable, str(EXAMPLE), str(tmp_path), *names], stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 200)):
                said.add(child.stdout.readline().removeprefix("ordered ").strip())
            child.kill()
            said |= {line.split()[1] for line in child.stdout if line.endswith("\n")}
    found = finished(tmp_path)
    about = f"seed {seed}"
    assert found == rows(tmp_path), about
    assert set(found.values()) == {1}, about
    assert said <= set(found), f"lost: {about}"


def test_it_is_short_and_runs_as_its_page_says(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "tea", "milk"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "ordered tea\nordered milk\n"
    assert finished(tmp_path) == rows(tmp_path) == {"tea": 1, "milk": 1}
