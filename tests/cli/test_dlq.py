from pathlib import Path

import pytest
from tests.cli.commands import run

import penstock
from penstock_messaging.retries.copies import retry_copy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two dead letters of the group `billing`, and one that names no topic."""
    with penstock.open(tmp_path / "store", environ={}) as store:
        for number in range(2):
            receipt = store.put("orders", b"order %d" % number, queue=0, tag="t")
            made = retry_copy(store.at(receipt.log_offset), "billing", level=-1)
            assert made is not None
            store.lowlevel.put_copies([made])
        store.lowlevel.put_copies([(penstock.Message("%DLQ%billing", b"odd\x1b", queue=0), b"")])
    return tmp_path / "store"


def test_the_groups_that_have_some_are_listed(root: Path) -> None:
    (found,) = run("dlq", "list", root, "--json").rows
    assert (found["group"], found["total"], found["left"]) == ("billing", 3, 3)
    run("dlq", "list", root).expect(0, out="not replayed")


def test_dead_letters_are_shown(root: Path) -> None:
    done = run("dlq", "show", root, "billing", "--offset", "1", "--limit", "1", "--json")
    assert (done.code, done.err) == (0, "there are more than 1: --limit shows them\n")
    (facts,) = done.rows
    names = ("body", "first_topic", "reconsume_times")
    assert [facts[name] for name in names] == ["order 1", "orders", 1]
    done = run("dlq", "show", root, "billing")
    assert done.code == 0
    assert "order 0" in done.out
    assert "\x1b" not in done.out
    assert "0: orders, tried 1 time" in done.out
    for words in (["show"], ["replay"], ["replay", "--dry-run"]):
        done = run("dlq", words[0], root, "audit", *words[1:])
        assert done == (1, b"", "group audit has no dead letters: billing has some\n")
    run("dlq", "show", root, "billing", "--offset", "3").expect(
        1, err="no dead letters at offset 3 or after it"
    )


def test_a_store_without_dead_letters_says_so(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store", environ={}) as store:
        store.put("orders", b"x", queue=0)
    run("dlq", "list", tmp_path / "store").expect(0, err="no group has dead letters\n")
    run("dlq", "show", tmp_path / "store", "billing").expect(1, err="no other group has any")


def test_a_dry_run_shows_what_a_replay_does(root: Path) -> None:
    done = run("dlq", "replay", root, "billing", "--dry-run")
    assert done.code == 1
    for text in (
        "dead letter 0 to %RETRY%billing/0",
        "dead letter 2 is not put back: it does not say in which topic",
        "2 dead letters would be put back; nothing was changed; 1 dead letter left out",
    ):
        assert text in done.err
    run("dlq", "replay", root, "billing", "--limit", "2").expect(0, err="2 dead letters put back")


def test_a_replay_to_the_topic_reports_as_json(root: Path) -> None:
    done = run("dlq", "replay", root, "billing", "--to", "topic", "--json")
    assert done.code == 1
    places = [(each["offset"], each["topic"]) for each in done.rows]
    assert places == [(0, "orders"), (1, "orders"), (2, "")]
    assert done.rows[2]["reason"]
    with penstock.open(root, read_only=True) as store:
        assert [m.body for m in store.scan("orders")] == [b"order 0", b"order 1"] * 2


def test_a_store_in_use_is_refused_and_its_holder_named(root: Path) -> None:
    with penstock.open(root, environ={}):
        run("dlq", "replay", root, "billing", "--set", "flush.use=sync").expect(
            3, err="open for writing elsewhere"
        )
        assert run("dlq", "replay", root, "billing", "--dry-run").code == 1
