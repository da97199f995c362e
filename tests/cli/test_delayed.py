"""`penstock delayed`, and `penstock put` with a delay or a time."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run

import penstock

HOUR_MS = 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two messages that wait."""
    with penstock.open(tmp_path / "store", environ={}) as store:
        store.put("orders", b"later", queue=0, delay=2 * HOUR_MS / 1000)
        store.put("reminders", b"soon", delay=HOUR_MS / 1000, queue=3)
    return tmp_path / "store"


def listed(root: Path, *words: str) -> list[dict[str, Any]]:
    done = run("delayed", "list", root, "--json", *words)
    assert done.code == 0
    return done.rows


def test_what_waits_is_listed_by_time(root: Path) -> None:
    found = listed(root)
    assert [(each["queue"], each["body_bytes"]) for each in found] == [(3, 4), (0, 5)]
    assert found[1:] == listed(root)[1:]
    assert len(listed(root, "--limit", "1")) == 1
    done = run("delayed", "list", root, "--limit", "1")
    assert done.code == 0
    assert "reminders" in done.out
    assert "1 more wait" in done.err


def test_a_message_is_cancelled_once(root: Path) -> None:
    first = listed(root)[0]["message_id"]
    run("delayed", "cancel", root, first).expect(0, out="is cancelled")
    done = run("delayed", "cancel", root, first, "--json")
    assert (done.code, done.rows) == (1, [{"message_id": first, "cancelled": False}])
    run("delayed", "cancel", root, first).expect(1, err="does not wait")
    assert len(listed(root)) == 1
    assert run("delayed", "cancel", root, "no id").code != 0


def test_a_store_in_which_nothing_waits_says_so(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store", environ={}) as store:
        store.put("orders", b"x", queue=0)
    assert listed(tmp_path / "store") == []
    run("delayed", "list", tmp_path / "store").expect(0, err="no message waits")


def test_put_takes_a_delay_or_a_time(root: Path) -> None:
    before_ms = time.time_ns() // 1_000_000
    at_ms = before_ms + 3 * HOUR_MS
    assert run("put", root, "orders", "a", "--delay", "1h30min").code == 0
    assert run("put", root, "orders", "b", "--deliver-at", at_ms).code == 0
    due = [each["due_ms"] for each in listed(root)]
    assert due[3] == at_ms
    assert isinstance(due[1], int)
    assert due[1] >= before_ms + 3 * HOUR_MS // 2
    assert run("put", root, "orders", "c", "--deliver-at", "1h").code == 0
    (later,) = [each["due_ms"] for each in listed(root) if each["due_ms"] not in due]
    assert later >= before_ms + HOUR_MS, "a time ago was meant nowhere"
    run("put", root, "orders", "x", "--delay", "soon").expect(2, err="is not a duration")
    done = run("put", root, "orders", "x", "--delay", "5s", "--delay-level", "2")
    assert done.code != 0
    assert "delay_level and delay" in done.err


def test_a_put_that_makes_a_store_says_so_once(tmp_path: Path) -> None:
    """A misspelt path made another store without a word."""
    for said in (f"{tmp_path / 'shpo'} is a new store\n", ""):
        done = run("put", tmp_path / "shpo", "orders", "a")
        assert (done.code, done.err) == (0, said)


def test_stat_does_not_count_what_is_cancelled_nor_what_cancels_it(root: Path) -> None:
    """It took each cancelled message off twice, and said 0 while some waited."""
    with penstock.open(root, environ={}) as store:
        cancelled, *left = store.delayed()
        assert store.cancel_delayed(cancelled.message_id)
        assert store.stats()["extensions"]["messaging"]["timers"]["waiting"] == len(left)
    (facts,) = run("stat", root, "--json").rows
    assert facts["extensions"]["timers"] == {
        "waiting": len(left),
        "first_due_ms": left[0].due_ms,
    }


def test_stat_counts_what_waits_at_a_level_retries_among_it(root: Path) -> None:
    with penstock.open(root, environ={}) as store:
        store.put("orders", b"later", queue=0, delay_level=18)
        store.put("orders", b"refused", queue=0)
        with store.consumer("g", "orders") as consumer:
            consumer.nack(consumer.poll(1, timeout=30), delay=7200)
    (facts,) = run("stat", root, "--json").rows
    assert facts["extensions"]["delays"] == {"waiting": 2}
    with penstock.open(root, environ={}) as store:
        assert {line.key: line.value for line in store.lowlevel.summary()}["delays"] == {
            "waiting": 2
        }


def test_stat_says_how_many_wait_and_who_cannot_deliver_them(root: Path) -> None:
    (facts,) = run("stat", root, "--json").rows
    assert facts["extensions"]["timers"]["waiting"] == 2
    assert facts["not_understood"] == []
    run("stat", root).expect(0, out="a broker of 4.x cannot deliver them")
