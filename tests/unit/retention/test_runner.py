"""What may go, when, and what never goes."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import InstallPlugin, OpenStore
from tests.lanes import eventually

from penstock.contracts import DiskUse, SegmentInfo, Vote
from penstock.retention.runner import consult
from penstock.testing import ManualClock, ManualWorkers

HOUR = 3_600_000
QUICKLY: dict[str, Any] = {"retention.pause_ms": 0}
SIZES: dict[str, Any] = {"geometry.segment_bytes": 65536}
FOUR = int(time.mktime((2026, 11, 21, 4, 30, 0, 0, 0, -1))) * 1000


def segments(*ages_hours: float) -> list[SegmentInfo]:
    return [
        SegmentInfo(n, 1, int(FOUR - age * HOUR), Path("x")) for n, age in enumerate(ages_hours)
    ]


@pytest.mark.slow
def test_segments_go_and_queues_and_index_follow(open_small: OpenStore, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"retention.age.reserved_hours": 0, "retention.age.delete_when": "*"}
    with open_small(retention=["age"], spawn=ManualWorkers(), **settings) as store:
        for number in range(2000):
            store.put("t", b"x" * 200, queue=number % 2, keys=[f"k{number}"])
        assert store.stats()["flushed_offset"] == 0
        assert store.retain() == 9
        assert store.stats()["flushed_offset"] > 9 * 65536, "made durable before anything goes"
        low = store.min_offset("t", 0)
        assert low > 0
        assert store.read("t", 0, 0).status == "OFFSET_TOO_SMALL"
        first = store.read("t", 0, low).messages[0]
        assert first.log_offset >= store.stats()["log_min_offset"] == 9 * 65536
        assert store.find("t", "k0") == []
        assert store.find("t", "k1999")
        assert not list(store.verify())
        assert store.max_offset("t", 0) == 1000
    with open_small() as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (low, 1000)
        assert not list(store.verify())
        assert store.discard_before(time_ms=1 << 60) == 0


@pytest.mark.slow
def test_a_segment_that_is_read_stays_until_the_interval_has_passed(open_small: OpenStore) -> None:
    clock = ManualClock()
    with open_small(spawn=ManualWorkers(), clock=clock) as store:
        for _ in range(700):
            store.put("t", b"x" * 200)
        store.flush()
        store.find("t", "none")
        end = store.stats()["log_end_offset"]
        with store._log.lease(0) as held:
            view = held.view()
            assert store.discard_before(log_offset=end) == 0
            assert store._log.segments[0] is held
            clock.now_ms += 120_000
            assert store.discard_before(log_offset=end) >= 1
            assert bytes(view[4:8]).hex() == "daa320a7", "what is held can still be read"
            del view
        assert store.discard_before(log_offset=0) == 0
        assert not list(store.verify())


def test_a_plugin_archives_a_segment_before_it_goes_or_keeps_it(
    install_plugin: InstallPlugin, open_small: OpenStore, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    install_plugin(
        "penstock-archive",
        f"""
        import pathlib, shutil
        from penstock import hookimpl
        @hookimpl
        def penstock_segment_expired(path, size, reason):
            shutil.copy(path, {str(archive)!r} + "/" + pathlib.Path(path).name)
            assert pathlib.Path(path).stat().st_size == size
            assert reason == "requested by the caller"
    """,
    )
    with open_small(spawn=ManualWorkers(), **QUICKLY) as store:
        for number in range(300):
            store.put("t", b"%d:" % number + b"x" * 1000)
        whole = store._log.segments[0].path.read_bytes()
        end = store.stats()["log_end_offset"]
        assert store.discard_before(log_offset=end) == 0, "there is no archive, so it stays"
        assert store._log.min_offset == 0
        archive.mkdir()
        assert store.discard_before(log_offset=end) == 5
        kept = sorted(archive.iterdir())
        assert len(kept) == 5
        assert kept[0].read_bytes() == whole
        assert not list(store.verify())


def test_at_most_ten_go_a_round_with_pauses_that_a_close_cuts_short(open_small: OpenStore) -> None:
    settings: dict[str, Any] = {
        "retention.use": ["size"], "retention.size.bytes_max": 0, "retention.pause_ms": 600_000,
    }  # fmt: skip
    with open_small(spawn=ManualWorkers(), **{**settings, "retention.pause_ms": 0}) as store:
        for _ in range(1000):
            store.put("t", b"x" * 1000)
        before = store.stats()["segments"]
        assert store.retain() == 10
        assert store.stats()["segments"] == before - 10
    store = open_small(spawn=ManualWorkers(), **settings)
    engine = store._engine
    assert engine is not None
    round_ = threading.Thread(target=engine.retention.run)
    round_.start()
    eventually(lambda: store.stats()["segments"] < before - 10, "the first round has ended")
    store.close()
    round_.join(30)
    assert not round_.is_alive()


@pytest.mark.slow
def test_dry_run_tells_and_changes_nothing(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small(spawn=ManualWorkers()) as store:
        for number in range(600):
            store.put(f"t{number % 3}", b"x" * (number % 3 * 400 + 100), queue=number % 2)
        sizes = {topic: sum(m.size for m in store.scan(topic)) for topic in ("t0", "t1", "t2")}
    root = tmp_path / "store"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "penstock", "retain", str(root), "--dry-run",
               "--set", "retention.use=size", "--set", "retention.size.bytes_max=131072"]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    whole = len(list((root / "commitlog").iterdir()))
    assert (
        f"{whole - 2} segments ({(whole - 2) * 64}.0 KiB) would be deleted now; nothing was changed"
        in shown.stderr
    )
    assert "Space by topic" in shown.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    segments = [fact for fact in facts if fact["kind"] == "segment"]
    assert [fact["goes_now"] for fact in segments] == [True] * (whole - 2) + [False] * 2
    assert segments[-1]["reason"] == "the last segment is never deleted"
    topics = {fact["topic"]: fact for fact in facts if fact["kind"] == "topic"}
    assert {topic: fact["bytes"] for topic, fact in topics.items()} == sizes
    assert sum(fact["messages"] for fact in topics.values()) == 600
    assert 0 < topics["t0"]["bytes_going_now"] < sizes["t0"]
    assert sum(fact["share"] for fact in topics.values()) == pytest.approx(1)
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_vote_is_held_within_what_there_is_and_one_that_fails_has_no_say() -> None:
    class Policy:
        def __init__(self, name: str, count: int) -> None:
            self.name, self.count = name, count

        def vote(self, segments: Any, now_ms: int, disk: DiskUse) -> Vote:
            if self.count == 13:
                raise ValueError("no")
            return Vote(self.count, self.name)

    segments = [SegmentInfo(at, 10, 0, Path(str(at))) for at in range(3)]
    policies: Any = [
        Policy("few", 1),
        Policy("many", 99),
        Policy("below", -5),
        Policy("failing", 13),
    ]
    decision = consult(policies, segments, 0, DiskUse(0, 0))
    assert (decision.going, decision.voters, decision.refusal) == (2, ("many",), None)
    assert list(decision.failed) == ["failing"]
