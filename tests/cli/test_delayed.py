"""`penstock delayed`, and `penstock put` with a delay or a time."""

import json
import time
from pathlib import Path

import pytest

import penstock
from penstock_messaging.commands.delayed import command
from penstock_tools.cli.root import run

HOUR_MS = 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two messages that wait."""
    with penstock.open(tmp_path / "store", environ={}) as store:
        store.put("orders", b"later", queue=0, delay=2 * HOUR_MS / 1000)
        store.put("reminders", b"soon", delay=HOUR_MS / 1000, queue=3)
    return tmp_path / "store"


def listed(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    assert run(["delayed", "list", str(root), "--json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_waits_is_listed_by_time(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(root, capsys)
    assert [(each["queue"], each["body_bytes"]) for each in found] == [(3, 4), (0, 5)]
    assert found[1:] == listed(root, capsys)[1:]
    assert len(listed(root, capsys, "--limit", "1")) == 1
    assert run(["list", str(root), "--limit", "1"], command, "delayed") == 0
    said = capsys.readouterr()
    assert "reminders" in said.out
    assert "1 more wait" in said.err


def test_a_message_is_cancelled_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = str(listed(root, capsys)[0]["message_id"])
    assert run(["delayed", "cancel", str(root), first]) == 0
    assert "is cancelled" in capsys.readouterr().out
    assert run(["delayed", "cancel", str(root), first, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"message_id": first, "cancelled": False}
    assert run(["delayed", "cancel", str(root), first]) == 1
    assert "does not wait" in capsys.readouterr().err
    assert len(listed(root, capsys)) == 1
    assert run(["delayed", "cancel", str(root), "no id"]) != 0


def test_a_store_in_which_nothing_waits_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(tmp_path / "store", environ={}) as store:
        store.put("orders", b"x", queue=0)
    assert listed(tmp_path / "store", capsys) == []
    assert run(["delayed", "list", str(tmp_path / "store")]) == 0
    assert "no message waits" in capsys.readouterr().err


def test_put_takes_a_delay_or_a_time(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before_ms = time.time_ns() // 1_000_000
    at_ms = before_ms + 3 * HOUR_MS
    assert run(["put", str(root), "orders", "a", "--delay", "1h30min"]) == 0
    assert run(["put", str(root), "orders", "b", "--deliver-at", str(at_ms)]) == 0
    capsys.readouterr()
    due = [each["due_ms"] for each in listed(root, capsys)]
    assert due[3] == at_ms
    assert isinstance(due[1], int)
    assert due[1] >= before_ms + 3 * HOUR_MS // 2
    assert run(["put", str(root), "orders", "c", "--deliver-at", "1h"]) == 0
    capsys.readouterr()
    (later,) = [each["due_ms"] for each in listed(root, capsys) if each["due_ms"] not in due]
    assert isinstance(later, int)
    assert later >= before_ms + HOUR_MS, "a time ago was meant nowhere"
    assert run(["put", str(root), "orders", "x", "--delay", "soon"]) == 2
    assert "is not a duration" in capsys.readouterr().err
    assert run(["put", str(root), "orders", "x", "--delay", "5s", "--delay-level", "2"]) != 0
    assert "delay_level and delay" in capsys.readouterr().err


def test_a_put_that_makes_a_store_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt path made another store without a word."""
    for said in (f"{tmp_path / 'shpo'} is a new store\n", ""):
        assert run(["put", str(tmp_path / "shpo"), "orders", "a"]) == 0
        assert capsys.readouterr().err == said


def test_stat_does_not_count_what_is_cancelled_nor_what_cancels_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took each cancelled message off twice, and said 0 while some waited."""
    with penstock.open(root, environ={}) as store:
        cancelled, *left = store.delayed()
        assert store.cancel_delayed(cancelled.message_id)
        assert store.stats()["extensions"]["messaging"]["timers"]["waiting"] == len(left)
    assert run(["stat", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["extensions"]["timers"]
    assert found == {"waiting": len(left), "first_due_ms": left[0].due_ms}


def test_stat_says_how_many_wait_and_who_cannot_deliver_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stat", str(root), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["extensions"]["timers"]["waiting"] == 2
    assert facts["not_understood"] == []
    assert run(["stat", str(root)]) == 0
    assert "a broker of 4.x cannot deliver them" in capsys.readouterr().out
