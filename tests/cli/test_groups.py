"""`penstock groups`: positions from journals, moving a group, and refusing to move a living one."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL

import penstock
from penstock_tools.cli.root import run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store whose group has acknowledged three of ten messages and refused one, with no writer since."""
    place = tmp_path / "store"
    sizes: dict[str, Any] = dict(SMALL)
    with penstock.open(place, environ={}, **sizes) as store:
        for number in range(10):
            store.put("orders", b"%d" % number, queue=0)
    with penstock.open(place, read_only=True) as reader:
        owned = taken(reader)
        owned.ack([0, 1, 2], 0)
        owned.nack(3, 0, 0xFFFF, 3)
        owned.hand_back()
    return place


def taken(store: penstock.Store) -> Any:
    """Take the queue for the group."""
    extension: Any = store.lowlevel.extension("messaging")
    return extension.groups.claim("billing", "orders", 0, member="1-x", begin=lambda: 0)


def shown(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, list[dict[str, Any]], str]:
    """Run a command; return its code, its lines of JSON, and what it wrote to standard error."""
    code = run(["groups", *arguments])
    done = capsys.readouterr()
    return (
        code,
        [json.loads(line) for line in done.out.splitlines() if line.startswith("{")],
        done.err,
    )


def test_positions_and_waiting_refusals_are_listed(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows, said = shown(capsys, str(path), "--json")
    assert (code, rows) == (
        0,
        [{"group": "billing", "topic": "orders", "queue": 0, "offset": 3, "lag": 7}],
    )
    assert "1 nacked message waits" in said
    assert "delays stand still" in said
    code, rows, said = shown(capsys, "list", str(path), "--json", "--group", "biling")
    assert (code, rows) == (1, [])
    assert (
        said == "there is no group 'biling', did you mean 'billing'? Groups in the store: billing\n"
    )


def test_a_reset_is_shown_first_and_then_made(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["reset", str(path), "billing", "--shift", "-2", "--json"]
    expected = [{"topic": "orders", "queue": 0, "before": 3, "after": 1}]
    code, rows, said = shown(capsys, *given, "--dry-run")
    assert (code, rows) == (0, expected)
    assert "nothing was changed" in said
    assert shown(capsys, *given)[:2] == (0, expected)
    assert shown(capsys, str(path), "--json")[1][0]["offset"] == 1
    assert shown(capsys, "reset", str(path), "billing", "--to", "latest")[0] == 0
    assert shown(capsys, str(path), "--json")[1][0]["lag"] == 0


def test_a_group_that_is_in_use_is_neither_moved_nor_deleted(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(path, read_only=True) as reader:
        owned = taken(reader)
        code, _, said = shown(capsys, "reset", str(path), "billing", "--to", "earliest")
        assert code != 0
        assert "process" in said
        assert shown(capsys, "delete", str(path), "billing", "--apply")[0] != 0
        owned.hand_back()
    code, _, said = shown(capsys, "delete", str(path), "billing")
    assert code == 1
    assert "nothing was changed" in said
    assert shown(capsys, "delete", str(path), "billing", "--apply")[0] == 0
    assert shown(capsys, str(path), "--json")[1] == []


def test_members_are_those_that_live(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "members", str(path), "billing", "--json")[:2] == (0, [])
    assert shown(capsys, "members", str(path), "a/b")[0] == 2
    assert shown(capsys, "reset", str(path), "billing")[0] == 2


@pytest.mark.parametrize("words", [
    ("members",), ("reset", "--to", "latest"), ("delete",), ("delete", "--apply"), ("delete", "--json"),
])  # fmt: skip
def test_an_unknown_group_is_named_and_nothing_is_done(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, rows, said = shown(capsys, words[0], str(path), "other", *words[1:])
    assert (code, rows) == (1, [])
    assert said == "there is no group 'other'. Groups in the store: billing\n"


def test_a_new_group_is_given_its_place_by_a_reset_of_topics(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["reset", str(path), "audit", "--to", "latest", "--topic", "orders"]
    assert shown(capsys, *given, "--json")[:2] == (
        0, [{"topic": "orders", "queue": 0, "before": None, "after": 10}],
    )  # fmt: skip
    code, rows, said = shown(capsys, *given, "--topic", "ordesr")
    assert (code, rows) == (1, [])
    assert "there is no topic 'ordesr', did you mean 'orders'?" in said
    assert (
        run(["groups", "reset", str(path), "misspelt", "--to", "latest", "--topic", "orders"]) == 0
    )
    assert "new group misspelt begins there" in capsys.readouterr().err
    with penstock.open(path, environ={}) as store:
        store.put("orders", b"new", queue=0)
        with store.consumer("audit", "orders") as consumer:
            assert [m.body for m in consumer.poll(10, timeout=30)] == [b"new"]


def test_a_place_that_is_none_is_answered_with_all_forms(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = shown(capsys, "reset", str(path), "billing", "--to", "soon")
    assert code == 2
    assert "neither earliest nor latest nor a time" in said
    assert "90s, 15min" in said
    code, rows, _ = shown(capsys, "reset", str(path), "billing", "--to", "1h", "--json")
    assert (code, rows[0]["after"]) == (0, 0)


def test_a_mistyped_command_is_no_path(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = shown(capsys, "rset", str(path), "billing")
    assert code == 2
    assert "did you mean 'reset'?" in said


def test_a_living_member_is_shown_and_stops_a_deletion(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        penstock.open(path, read_only=True) as reader,
        reader.consumer("billing", "orders") as consumer,
    ):
        consumer.poll(timeout=30)
        assert run(["groups", "members", str(path), "billing"]) == 0
        assert f" {os.getpid()} " in capsys.readouterr().out
        code, _, said = shown(capsys, "delete", str(path), "billing")
        assert code == 1
        assert f"it has a consumer in process {os.getpid()}" in said
        code, _, said = shown(capsys, "delete", str(path), "billing", "--apply")
        assert code == 3
        assert f"group 'billing' has a consumer, process {os.getpid()}" in said
        code, _, said = shown(capsys, "reset", str(path), "billing", "--to", "earliest")
        assert code == 3
        assert "is held by a consumer of group 'billing'" in said
    assert (
        shown(capsys, "members", str(path), "billing")[2] == "group billing has no living member\n"
    )
