"""`penstock transactions`, and the line of `penstock stat` about prepared messages."""

from pathlib import Path

import pytest
from tests.cli.commands import run

import penstock
from penstock_messaging.prepared.half_message import half_message


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data") as store:
        store.prepare("orders", b"1", group="shop", queue=2)
        store.prepare("orders", b"2", group="shop")
    return tmp_path / "data"


def listed(data: Path) -> list[str]:
    done = run("transactions", data, "--json")
    assert done.code == 0
    return [row["transaction_id"] for row in done.rows]


def test_open_ones_are_listed_committed_and_rolled_back(data: Path) -> None:
    first, second = listed(data)
    for text in (first, "shop"):
        run("transactions", "list", data).expect(0, out=text)
    run("transactions", "commit", data, first).expect(0, err="orders/2, queue offset 0")
    assert run("transactions", "rollback", data, second, "--set", "flush.use=sync").code == 0
    run("transactions", "commit", data, first).expect(1, err="no open prepared message")
    assert listed(data) == []
    run("transactions", data).expect(0, err="no message is prepared")
    with penstock.open(data, read_only=True) as store:
        assert [m.body for m in store.scan("orders")] == [b"1"]


def test_stat_shows_how_many_and_how_old(data: Path) -> None:
    run("stat", data).expect(0, out="prepared, not committed")
    (facts,) = run("stat", data, "--json").rows
    assert facts["extensions"]["prepared"]["open"] == 2


def test_of_a_message_that_was_sent_twice_one_is_committed(data: Path) -> None:
    """A producer that got no answer sends its half message to the broker once more, with the same id."""
    with penstock.open(data) as store:
        half = store.prepared()[1].message
        text = "".join(f"{name}\x01{value}\x02" for name, value in half.all_properties.items())
        copy = penstock.Message(half.topic, half.body, queue=0, born_time_ms=half.born_time_ms)
        store.lowlevel.put_copies([(copy, text.encode())])
    _, second, same = listed(data)
    assert second == same
    assert run("transactions", "commit", data, second).code == 0
    assert len(listed(data)) == 1
    with penstock.open(data, read_only=True) as store:
        assert [m.body for m in store.scan("orders")] == [b"2"]


def test_of_different_messages_with_one_id_none_is_finished(data: Path) -> None:
    """The id is what a producer wrote: a commit of one message rolled back another one, of another group and topic."""
    with penstock.open(data) as store:
        for topic in ("pears", "apples"):
            copy, text = half_message(penstock.Message(topic, b"x", queue=0), "g", "SAME")
            store.lowlevel.put_copies([(copy, text)])
    for verb in ("commit", "rollback"):
        run("transactions", verb, data, "SAME").expect(1, err="group g, apples/0; group g, pears/0")
    assert listed(data)[2:] == ["SAME", "SAME"]
