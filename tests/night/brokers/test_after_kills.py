"""After kills of a real Penstock writer, the real Java store opens the directory and sees the same."""

import random
from pathlib import Path

import pytest
from tests.crash.test_kill import check, run_and_kill
from tests.crash.writer import SMALL
from tests.interop.compare import same
from tests.interop.jvms import JavaStores

import penstock

# The writer's sizes, for Java.
SIZES = {
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 500 * 20,
    "maxHashSlotNum": 200,
    "maxIndexNum": 1500,
}


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_java_opens_what_kills_left(flush: str, javas: JavaStores, tmp_path: Path) -> None:
    path = tmp_path / "store"
    chance = random.Random(11)
    count = 0
    for _ in range(3):
        acknowledged = run_and_kill(path, flush, count, chance.randrange(500, 3000))
        with penstock.open(path, environ={}, **SMALL) as store:
            count = check(store, acknowledged)
    # Java recovers the last kill by itself, without our help.
    acknowledged = run_and_kill(path, flush, count, 2000)
    with javas.take("5.3.3") as java:
        assert java.open(path, SIZES)
        dumped = java.dump()
        assert sum(len(queue["messages"]) for queue in dumped.values()) >= acknowledged + 1
        java.close()
    with penstock.open(path, environ={}, **SMALL) as store:
        assert same(store, dumped) >= acknowledged + 1
        check(store, acknowledged)
