"""`penstock retain --dry-run` as a user runs it: on a live store, on a broker's directory, on nothing."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Done, run
from tests.conftest import unpack

import penstock

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES: dict[str, Any] = {"geometry.segment_bytes": 65536}
ALL = ("--set", "retention.use=size", "--set", "retention.size.bytes_max=0")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "dumb")


def facts(done: Done, kind: str) -> list[dict[str, Any]]:
    done.expect(0)
    return [fact for fact in done.rows if fact["kind"] == kind]


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file's time and bytes, and every folder."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def test_a_live_store_is_looked_at_without_its_lock(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with penstock.open(root, environ={}, flush="sync", **SIZES) as store:
        for number in range(200):
            store.put(("a", "b")[number % 2], b"x" * 1000, queue=0)
        segments = store.stats()["segments"]
        exact = {t: sum(m.size for m in store.scan(t)) for t in ("a", "b")}
        store.flush()
        done = run("retain", root, "--dry-run", "--json", *ALL)
        assert [f["goes_now"] for f in facts(done, "segment")] == [True] * (segments - 1) + [False]
        topics = facts(done, "topic")
        assert {f["topic"]: f["bytes"] for f in topics} == exact
        assert sum(f["share"] for f in topics) == pytest.approx(1)
        assert all(0 < f["bytes_going_now"] < f["bytes"] for f in topics)
        assert store.stats()["segments"] == segments
        store.put("a", b"the writer goes on", queue=0)
        # The settings are not those of the writer.
        run("retain", root, *ALL).expect(3)


@pytest.mark.parametrize("name", ["java-4.9.8-clean", "java-5.3.3-clean", "java-5.3.3-killed"])
def test_a_brokers_directory_is_looked_at_and_left_alone(name: str, tmp_path: Path) -> None:
    unpack(GOLDEN / f"{name}.tar.gz", tmp_path)
    root = tmp_path / "store"
    (tmp_path / "broker.conf").write_text("fileReservedTime=0\ndeleteWhen=00\n")
    before = everything(root)
    done = run("retain", root, "--dry-run", "--json", "--broker-conf", tmp_path / "broker.conf")
    segments = facts(done, "segment")
    assert segments[-1]["reason"] == "the last segment is never deleted"
    assert all(fact["goes_at_ms"] is not None for fact in segments[:-1])
    with penstock.open(root, read_only=True) as store:
        exact = {t: [m.size for m in store.scan(t)] for t in store.topics()}
    told = {fact["topic"]: (fact["messages"], fact["bytes"]) for fact in facts(done, "topic")}
    assert told == {topic: (len(sizes), sum(sizes)) for topic, sizes in exact.items()}
    assert before == everything(root)


def test_it_ends_with_a_plain_sentence(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with penstock.open(root, environ={}, **SIZES) as store:
        for _ in range(800):
            store.put("t", b"x" * 1000, queue=0)
        segments = store.stats()["segments"]
    for path in (root / "commitlog").iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    rounds = run("retain", root, "--dry-run", *ALL)
    said = f"10 segments (640.0 KiB) would be deleted now, {segments - 11} more within 14 days"
    rounds.expect(0, out="Space by topic", err=said)
    limit = f"retention.size.bytes_max={(segments - 1) * 65536}"
    one = run("retain", root, "--dry-run", *ALL[:2], "--set", limit)
    assert one.err == "1 segment (64.0 KiB) would be deleted now; nothing was changed\n"
    young = ("--set", "retention.use=age", "--set", "retention.age.reserved_hours=200000")
    none = run("retain", root, "--dry-run", *young)
    assert none.err.startswith("no segment would be deleted within 14 days: the oldest was ")
    none = run("retain", root, "--dry-run", "--days", "0", "--set", "retention.use=[]")
    assert none.err == "no segment would be deleted within 0 days: no policy is configured\n"
    done = run("retain", root, "--json", *ALL)
    left = len(list((root / "commitlog").iterdir()))
    # Also those that went with the opening.
    assert done.rows == [{"segments_gone": segments - left, "segments_left": left}]
    empty = tmp_path / "empty"
    penstock.open(empty, environ={}, **SIZES).close()
    assert run("retain", empty, "--dry-run").err == "the log is empty: there is nothing to delete\n"


@pytest.mark.parametrize("days", ["-1", "inf", "nan", "soon", "3661"])
def test_days_must_be_a_number_of_days(days: str, tmp_path: Path) -> None:
    penstock.open(tmp_path / "s", environ={}, **SIZES).close()
    done = run("retain", tmp_path / "s", "--dry-run", "--days", days)
    done.expect(2)
    assert "Traceback" not in done.err
