"""`penstock transactions`, and the line of `penstock stat` about prepared messages."""

import json
from pathlib import Path

import pytest

import penstock
from penstock_messaging.prepared.half_message import half_message
from penstock_tools.cli.root import run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data") as store:
        store.prepare("orders", b"1", group="shop", queue=2)
        store.prepare("orders", b"2", group="shop")
    return tmp_path / "data"


def listed(data: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert run(["transactions", str(data), "--json"]) == 0
    return [json.loads(line)["transaction_id"] for line in capsys.readouterr().out.splitlines()]


def test_open_ones_are_listed_committed_and_rolled_back(data: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    first, second = listed(data, capsys)
    assert run(["transactions", "list", str(data)]) == 0
    shown = capsys.readouterr().out
    assert first in shown
    assert "shop" in shown
    assert run(["transactions", "commit", str(data), first]) == 0
    assert "orders/2, queue offset 0" in capsys.readouterr().err
    assert run(["transactions", "rollback", str(data), second, "--set", "flush.use=sync"]) == 0
    assert run(["transactions", "commit", str(data), first]) == 1
    assert "no open prepared message" in capsys.readouterr().err
    assert listed(data, capsys) == []
    assert run(["transactions", str(data)]) == 0
    assert "no message is prepared" in capsys.readouterr().err
    with penstock.open(data, read_only=True) as store:
        assert [m.body for m in store.scan("orders")] == [b"1"]


def test_stat_shows_how_many_and_how_old(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stat", str(data)]) == 0
    assert "prepared, not committed" in capsys.readouterr().out
    assert run(["stat", str(data), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["extensions"]["prepared"]["open"] == 2


def test_of_a_message_that_was_sent_twice_one_is_committed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """A producer that got no answer sends its half message to the broker once more, with the same id."""
    with penstock.open(data) as store:
        half = store.prepared()[1].message
        text = "".join(f"{name}\x01{value}\x02" for name, value in half.all_properties.items())
        copy = penstock.Message(half.topic, half.body, queue=0, born_time_ms=half.born_time_ms)
        store.lowlevel.put_copies([(copy, text.encode())])
    _, second, same = listed(data, capsys)
    assert second == same
    assert run(["transactions", "commit", str(data), second]) == 0
    assert len(listed(data, capsys)) == 1
    with penstock.open(data, read_only=True) as store:
        assert [m.body for m in store.scan("orders")] == [b"2"]


def test_of_different_messages_with_one_id_none_is_finished(data: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """The id is what a producer wrote: a commit of one message rolled back another one, of another group and topic."""
    with penstock.open(data) as store:
        for topic in ("pears", "apples"):
            copy, text = half_message(penstock.Message(topic, b"x", queue=0), "g", "SAME")
            store.lowlevel.put_copies([(copy, text)])
    for verb in ("commit", "rollback"):
        assert run(["transactions", verb, str(data), "SAME"]) == 1
        assert "group g, apples/0; group g, pears/0" in capsys.readouterr().err
    assert listed(data, capsys)[2:] == ["SAME", "SAME"]
