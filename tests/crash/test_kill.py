"""kill -9 of a real writer and of a real member of a group, on one store."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.crash.writer import SMALL, body, message
from tests.faults.children import environment, start, writing
from tests.lanes import SEED, at_night, rounds
from tests.matrix.combos import ALLOWED, name_of, settings_of

import penstock
from penstock.store.store import Store

WRITER = Path(__file__).parent / "writer.py"
ROOT = Path(__file__).parents[2]
# For each flush policy, and for each combination of strategies.
KILLS, KILLS_OF_EACH = rounds(gate=2, night=50), 2
QUEUES = 3
MEMBER = """
import sys
import penstock
with penstock.open(sys.argv[1], read_only=True) as store, store.consumer("g", "t") as consumer:
    while True:
        for message in consumer.poll(7, timeout=60):
            message.ack()
            print(message.body.partition(b":")[0].decode(), flush=True)
"""


def run_and_kill(path: Path, settings: dict[str, Any], begin: int, count: int) -> int:
    """Run a writer until it has said `count` numbers, kill it; returns the last number it said was acknowledged."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), json.dumps(settings), str(begin)],
        stdout=subprocess.PIPE, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(count)]
    process.kill()
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    # A kill within a print may leave half a number.
    return int((b"".join(first) + rest).split(b"\n")[:-1][-1])


def check(store: Store, acknowledged: int) -> int:
    """All that was acknowledged is there once and in order; what else is there is the next few."""
    bodies = [m.body for m in store.scan("t")]
    count = len(bodies)
    assert count >= acknowledged + 1
    assert bodies == [body(number) for number in range(count)]
    assert not list(store.verify())
    for number in (0, acknowledged // 2, acknowledged):
        assert [m.body for m in store.find(f"k{number}", "t")] == [body(number)]
    return count


@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        ({"flush": "sync"}, KILLS),
        ({"flush": "async"}, KILLS),
        *(at_night(settings_of(combo), KILLS_OF_EACH) for combo in ALLOWED),
    ],
    ids=["sync", "async", *map(name_of, ALLOWED)],
)
def test_a_killed_writer_loses_nothing_it_acknowledged(
    settings: dict[str, Any], kills: int, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    path = tmp_path / "store"
    count = 0
    for _ in range(kills):
        acknowledged = run_and_kill(path, settings, count, chance.randrange(1, 3000))
        with penstock.open(path, read_only=True) as reader:
            assert reader.max_offset("t", 0) >= 0
        with penstock.open(path, environ={}, **{**SMALL, **settings}) as store:
            assert store.recovery is not None
            assert store.recovery.state == "abnormal"
            count = check(store, acknowledged)
    assert count > 0


def test_what_a_killed_member_acknowledged_never_comes_again_and_all_else_does(
    tmp_path: Path,
) -> None:
    count = 300
    with penstock.open(tmp_path / "store", environ={}, **SMALL) as store:
        store.put_many([message(number) for number in range(count)])
        with start(MEMBER, tmp_path / "store") as member:
            assert member.stdout is not None
            said = "".join(member.stdout.readline() for _ in range(40))
            member.kill()
            said += member.stdout.read()
        acknowledged = {int(line) for line in said.split("\n")[:-1]}
        for queue in range(QUEUES):
            store.put("t", b"-1:", queue=queue)
        numbers: list[int] = []
        with store.consumer("g", "t") as consumer:
            # Each queue comes in order, so that nothing of it is still to come after its last message.
            while numbers.count(-1) < QUEUES:
                given = consumer.poll(50, timeout=60)
                assert given
                numbers += [int(each.body.partition(b":")[0]) for each in given]
                consumer.ack(given)
    found = set(numbers) - {-1}
    assert not found & acknowledged
    # One may have been acknowledged without a word before the kill.
    assert len(set(range(count)) - found - acknowledged) <= 1
    assert len(numbers) == len(found) + QUEUES


def test_followers_in_other_processes_see_every_message_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writing(path, "async"), penstock.open(path, read_only=True) as reader:
        for number, message in enumerate(reader.scan("t", follow=True)):
            assert message.body == body(number)
            if number == 1500:
                break
        assert [m.body for m in reader.find("k77", "t")] == [body(77)]


@pytest.mark.parametrize("count", [20, 100, 300])
def test_a_writer_that_dies_within_a_batch_leaves_a_beginning_of_it(
    count: int, tmp_path: Path
) -> None:
    """A copy into the map writes its first bytes last: killed where it enters a page, it left a hole (found by a kill)."""
    path = tmp_path / "store"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, str(WRITER.parent / "dying.py"), str(path), str(count)],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
        acknowledged = int(done.stdout.split()[-1])
        with penstock.open(path, environ={}, **SMALL) as store:
            assert check(store, acknowledged - 1) >= acknowledged
