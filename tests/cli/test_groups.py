"""`penstock groups`: positions from journals, moving a group, and refusing to move a living one."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run
from tests.conftest import SMALL

import penstock


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


def test_positions_and_waiting_refusals_are_listed(path: Path) -> None:
    done = run("groups", path, "--json")
    row = {"group": "billing", "topic": "orders", "queue": 0, "offset": 3, "lag": 7}
    assert (done.code, done.rows) == (0, [row])
    assert "1 nacked message waits" in done.err
    assert "delays stand still" in done.err
    assert run("groups", "list", path, "--json", "--group", "biling") == (
        1, b"", "there is no group 'biling', did you mean 'billing'? Groups in the store: billing\n",
    )  # fmt: skip


def test_a_reset_is_shown_first_and_then_made(path: Path) -> None:
    given = ["groups", "reset", path, "billing", "--shift", "-2", "--json"]
    expected = [{"topic": "orders", "queue": 0, "before": 3, "after": 1}]
    done = run(*given, "--dry-run")
    assert (done.code, done.rows) == (0, expected)
    assert "nothing was changed" in done.err
    done = run(*given)
    assert (done.code, done.rows) == (0, expected)
    assert run("groups", path, "--json").rows[0]["offset"] == 1
    assert run("groups", "reset", path, "billing", "--to", "latest").code == 0
    assert run("groups", path, "--json").rows[0]["lag"] == 0


def test_a_group_that_is_in_use_is_neither_moved_nor_deleted(path: Path) -> None:
    with penstock.open(path, read_only=True) as reader:
        owned = taken(reader)
        done = run("groups", "reset", path, "billing", "--to", "earliest")
        assert done.code != 0
        assert "process" in done.err
        assert run("groups", "delete", path, "billing", "--apply").code != 0
        owned.hand_back()
    run("groups", "delete", path, "billing").expect(1, err="nothing was changed")
    assert run("groups", "delete", path, "billing", "--apply").code == 0
    assert run("groups", path, "--json").rows == []


def test_members_are_those_that_live(path: Path) -> None:
    done = run("groups", "members", path, "billing", "--json")
    assert (done.code, done.rows) == (0, [])
    assert run("groups", "members", path, "a/b").code == 2
    assert run("groups", "reset", path, "billing").code == 2


@pytest.mark.parametrize("words", [
    ("members",), ("reset", "--to", "latest"), ("delete",), ("delete", "--apply"), ("delete", "--json"),
])  # fmt: skip
def test_an_unknown_group_is_named_and_nothing_is_done(path: Path, words: tuple[str, ...]) -> None:
    done = run("groups", words[0], path, "other", *words[1:])
    assert done == (1, b"", "there is no group 'other'. Groups in the store: billing\n")


def test_a_new_group_is_given_its_place_by_a_reset_of_topics(path: Path) -> None:
    given = ["groups", "reset", path, "audit", "--to", "latest", "--topic", "orders"]
    done = run(*given, "--json")
    row = {"topic": "orders", "queue": 0, "before": None, "after": 10}
    assert (done.code, done.rows) == (0, [row])
    done = run(*given, "--topic", "ordesr")
    done.expect(1, err="there is no topic 'ordesr', did you mean 'orders'?")
    assert done.out == ""
    run("groups", "reset", path, "misspelt", *given[4:]).expect(
        0, err="new group misspelt begins there"
    )
    with penstock.open(path, environ={}) as store:
        store.put("orders", b"new", queue=0)
        with store.consumer("audit", "orders") as consumer:
            assert [m.body for m in consumer.poll(10, timeout=30)] == [b"new"]


def test_a_place_that_is_none_is_answered_with_all_forms(path: Path) -> None:
    done = run("groups", "reset", path, "billing", "--to", "soon")
    done.expect(2, err="neither earliest nor latest nor a time")
    assert "90s, 15min" in done.err
    done = run("groups", "reset", path, "billing", "--to", "1h", "--json")
    assert (done.code, done.rows[0]["after"]) == (0, 0)


def test_a_mistyped_command_is_no_path(path: Path) -> None:
    run("groups", "rset", path, "billing").expect(2, err="did you mean 'reset'?")


def test_a_living_member_is_shown_and_stops_a_deletion(path: Path) -> None:
    with (
        penstock.open(path, read_only=True) as reader,
        reader.consumer("billing", "orders") as consumer,
    ):
        consumer.poll(timeout=30)
        own = f"process {os.getpid()}"
        run("groups", "members", path, "billing").expect(0, out=f" {os.getpid()} ")
        (row,) = run("groups", "members", path, "billing", "--json").rows
        assert row["topics"] == ["orders", "%RETRY%billing"]
        run("groups", "delete", path, "billing").expect(1, err=f"it has a consumer in {own}")
        run("groups", "delete", path, "billing", "--apply").expect(
            3, err=f"group 'billing' has a consumer, {own}"
        )
        run("groups", "reset", path, "billing", "--to", "earliest").expect(
            3, err="is held by a consumer of group 'billing'"
        )
    run("groups", "members", path, "billing").expect(0, err="group billing has no living member\n")
