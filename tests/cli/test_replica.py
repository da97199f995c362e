"""`penstock replica`: status, follow and promote."""

import json
from pathlib import Path

import pytest
from tests.scripted_masters import PlainMaster, filled, log_of, serving, settings

import penstock
from penstock.cli.root import run
from penstock_replicate.commands.replica import command

SEGMENTS = ("--set", f"geometry.segment_bytes={settings()['geometry.segment_bytes']}")


def replica(*words: object) -> int:
    return run([str(word) for word in words], command, "penstock replica")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_store_is_copied_once_shown_and_promoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = filled(tmp_path / "m")
    copy = tmp_path / "c"
    with serving(tmp_path / "m") as (_, address):
        assert replica("follow", copy, "--from", address, "--once") == 0
        shown = capsys.readouterr()
        assert f"follows {address} (penstock), stopped, nothing behind" in shown.err
        assert shown.out == ""
        assert replica("follow", copy, "--from", address, "--once", "--json") == 0
        (line,) = lines(capsys)
        assert json.loads(line)["end_offset"] == end
    assert replica("status", copy) == 0
    first, second = lines(capsys)
    assert first.startswith(f"follower of {address}, epoch 1, history ")
    assert second.startswith(f"not running now; as it was when it ran last: follows {address}")
    assert replica("status", copy, "--json") == 0
    (line,) = lines(capsys)
    facts = json.loads(line)
    assert (facts["role"], facts["end_offset"], facts["is_live"]) == ("follower", end, False)
    # There is no terminal to ask on.
    assert replica("promote", copy) == 2
    assert "--yes" in capsys.readouterr().err
    assert replica("promote", copy, "--yes", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["start_offset"] == end
    assert "all of it is here" in shown.err
    assert replica("promote", copy, "--yes") == 2
    assert "is a master" in capsys.readouterr().err
    with penstock.open(copy) as store:
        assert store.put("orders", b"next").log_offset == end


def test_the_loser_of_two_masters_is_told_and_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with serving(old) as (store, address):
        store.put("orders", b"000000")
        assert replica("follow", new, "--from", address, "--once", "-q") == 0
        store.put("orders", b"000001")
    assert replica("promote", new, "-y") == 0
    capsys.readouterr()
    with serving(new) as (_, address):
        assert replica("follow", old, "--from", address, "--once") == 4
        shown = capsys.readouterr().err
        assert "1 records, after it are only here" in shown
        assert "--cut" in shown
        assert replica("follow", old, "--from", address, "--once", "--cut", "-q") == 0
    with penstock.open(old, read_only=True) as store:
        assert [m.body for m in store.scan("orders")] == [b"000000"]


def test_a_rocketmq_master_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = filled(tmp_path / "m")
    with PlainMaster(log_of(tmp_path / "m")[:end]) as master:
        words = ("--from", master.address, "--protocol", "rocketmq", "--once", *SEGMENTS)
        assert replica("follow", tmp_path / "c", *words) == 0
    assert "(rocketmq)" in capsys.readouterr().err


def test_a_store_without_copies_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "m", 1)
    assert replica("status", tmp_path / "m") == 1
    assert "is not replicated" in capsys.readouterr().err
    assert replica("promote", tmp_path / "m", "-y") == 2
    assert "was never a copy" in capsys.readouterr().err


def test_what_is_no_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replica("follow", tmp_path / "c", "--from", "nowhere") == 2
    assert "HOST:PORT" in capsys.readouterr().err
