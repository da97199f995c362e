import json
from pathlib import Path

import pytest

import penstock
from penstock_messaging.commands.dlq import command
from penstock_messaging.retries.copies import retry_copy
from penstock_tools.cli.root import run


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


def test_the_command_is_found_by_its_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dlq", "list", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["group"], found["total"], found["left"]) == ("billing", 3, 3)
    assert run(["list", str(root)], command, "dlq") == 0
    assert "not replayed" in capsys.readouterr().out


def test_dead_letters_are_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["dlq", "show", str(root), "billing", "--offset", "1", "--limit", "1", "--json"]) == 0
    )
    said = capsys.readouterr()
    lines = said.out.splitlines()
    facts = json.loads(lines[0])
    assert said.err == "there are more than 1: --limit shows them\n"
    assert len(lines) == 1
    assert (facts["body"], facts["first_topic"], facts["reconsume_times"]) == (
        "order 1",
        "orders",
        1,
    )
    assert run(["dlq", "show", str(root), "billing"]) == 0
    shown = capsys.readouterr().out
    assert "order 0" in shown
    assert "\x1b" not in shown
    assert "0: orders, tried 1 time" in shown
    for words in (["show"], ["replay"], ["replay", "--dry-run"]):
        assert run(["dlq", words[0], str(root), "audit", *words[1:]]) == 1
        assert capsys.readouterr() == ("", "group audit has no dead letters: billing has some\n")
    assert run(["dlq", "show", str(root), "billing", "--offset", "3"]) == 1
    assert "no dead letters at offset 3 or after it" in capsys.readouterr().err


def test_a_store_without_dead_letters_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(tmp_path / "store", environ={}) as store:
        store.put("orders", b"x", queue=0)
    assert run(["dlq", "list", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().err == "no group has dead letters\n"
    assert run(["dlq", "show", str(tmp_path / "store"), "billing"]) == 1
    assert "no other group has any" in capsys.readouterr().err


def test_a_dry_run_shows_what_a_replay_does(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dlq", "replay", str(root), "billing", "--dry-run"]) == 1
    told = capsys.readouterr().err
    assert "dead letter 0 to %RETRY%billing/0" in told
    assert "dead letter 2 is not put back: it does not say in which topic" in told
    assert "2 dead letters would be put back; nothing was changed; 1 dead letter left out" in told
    assert run(["dlq", "replay", str(root), "billing", "--limit", "2"]) == 0
    assert "2 dead letters put back" in capsys.readouterr().err


def test_a_replay_to_the_topic_reports_as_json(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dlq", "replay", str(root), "billing", "--to", "topic", "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["offset"], each["topic"]) for each in found] == [
        (0, "orders"),
        (1, "orders"),
        (2, ""),
    ]
    assert found[2]["reason"]
    with penstock.open(root, read_only=True) as store:
        assert [m.body for m in store.scan("orders")] == [b"order 0", b"order 1"] * 2


def test_a_store_in_use_is_refused_and_its_holder_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(root, environ={}):
        assert run(["dlq", "replay", str(root), "billing", "--set", "flush.use=sync"]) == 3
        assert "open for writing elsewhere" in capsys.readouterr().err
        assert run(["dlq", "replay", str(root), "billing", "--dry-run"]) == 1
