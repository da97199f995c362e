"""Consumer groups in a broker's file."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CorruptionError, MessageError, ReadOnlyError
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.testing import make_context
from penstock_messaging.configuration.groups import GroupConfig, GroupConfigs, config_of

GOLDEN = Path(__file__).parents[2] / "golden" / "broker-config"
TABLE = b'"subscriptionGroupTable":{'


def made(root: Path, *, read_only: bool = False) -> GroupConfigs:
    return GroupConfigs(make_context(root, read_only=read_only))


def give(root: Path, raw: bytes) -> Path:
    path = root / "config" / "subscriptionGroup.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def entries_in(root: Path) -> dict[str, Any]:
    found: Any = parse_rocketmq_json((root / "config" / "subscriptionGroup.json").read_text())
    table: dict[str, Any] = found["subscriptionGroupTable"]
    return table


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_group_added_to_a_brokers_file_looks_as_if_the_broker_had_added_it(tmp_path: Path, version: str) -> None:  # fmt: skip
    """The broker created billing for its first consumer: removed and created again, it is the same in every byte."""
    raw = (GOLDEN / version / "subscriptionGroup.json").read_bytes()
    path = give(tmp_path, raw)
    groups = made(tmp_path)
    assert groups.get("billing") == GroupConfig("billing", 16, 1, True)
    assert groups.delete("billing")
    assert b'"billing"' not in path.read_bytes()
    groups.ensure("billing")
    groups.save()
    assert path.read_bytes().partition(TABLE)[2] == raw.partition(TABLE)[2]


def test_a_group_is_created_at_its_first_use_and_saved_later(tmp_path: Path) -> None:
    changes: list[int] = []
    groups = GroupConfigs(make_context(tmp_path), lambda: changes.append(1))
    assert groups.get("g") is None
    assert groups.ensure("g") == groups.ensure("g") == GroupConfig("g")
    assert changes == [1]
    assert not (tmp_path / "config").exists()
    groups.save()
    assert entries_in(tmp_path)["g"]["retryMaxTimes"] == 16
    assert made(tmp_path).all() == {"g": GroupConfig("g")}


def test_what_is_not_given_stays_when_a_group_is_altered(tmp_path: Path) -> None:
    give(tmp_path, b'{"subscriptionGroupTable":{"g":{"brokerId":7,"later":{},"retryQueueNums":2}}}')
    groups = made(tmp_path)
    assert groups.alter("g", retry_max=3) == GroupConfig("g", 3, 2, True)
    assert groups.alter("g", retry_queues=0, is_enabled=False) == GroupConfig("g", 3, 0, False)
    entry = entries_in(tmp_path)["g"]
    assert (entry["brokerId"], entry["later"], entry["consumeEnable"]) == (7, {}, False)
    assert groups.alter("new", retry_max=0) == made(tmp_path).get("new") == GroupConfig("new", 0)


def test_a_deleted_group_is_gone(tmp_path: Path) -> None:
    groups = made(tmp_path)
    groups.alter("g", retry_max=3)
    assert groups.delete("g")
    assert not groups.delete("g")
    assert entries_in(tmp_path) == groups.all() == {}


def test_the_limits_of_a_number_are_javas() -> None:
    for number in (-(1 << 31), (1 << 31) - 1):
        assert config_of("g", {"retryMaxTimes": number}).retry_max == number
    with pytest.raises(ValueError, match="retryMaxTimes"):
        config_of("g", {"retryMaxTimes": -(1 << 31) - 1})


@pytest.mark.parametrize("entry", [None, 3, {"retryMaxTimes": "16"}, {"retryQueueNums": True}, {"retryMaxTimes": 1 << 31}, {"consumeEnable": 1}])  # fmt: skip
def test_an_entry_that_cannot_be_understood_is_set_aside_and_kept(tmp_path: Path, entry: object, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    with pytest.raises(ValueError):  # noqa: PT011 - every reason is one
        config_of("odd", entry)
    give(tmp_path, json.dumps({"subscriptionGroupTable": {"odd": entry}}).encode())
    groups = made(tmp_path)
    assert groups.ensure("odd") == GroupConfig("odd")
    assert "entry of group 'odd' is not used" in caplog.text
    with pytest.raises(MessageError, match="cannot be changed"):
        groups.alter("odd", retry_max=1)
    groups.ensure("new")
    groups.save()
    assert entries_in(tmp_path)["odd"] == entry
    assert groups.delete("odd")
    assert list(entries_in(tmp_path)) == ["new"]


def test_an_unreadable_file_is_not_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    path = give(tmp_path, b"{")
    groups = made(tmp_path)
    assert groups.ensure("g") == GroupConfig("g")
    groups.save()
    assert "groups are not saved" in caplog.text
    for change in (lambda: groups.alter("g", retry_max=1), lambda: groups.delete("g")):
        with pytest.raises(CorruptionError, match="it is not replaced"):
            change()
    assert path.read_bytes() == b"{"


def test_a_reader_sees_each_change_and_writes_nothing(tmp_path: Path) -> None:
    reader, writer = made(tmp_path, read_only=True), made(tmp_path)
    assert reader.ensure("g") == GroupConfig("g")
    assert reader.all() == {}
    writer.alter("g", retry_max=2)
    assert reader.ensure("g") == reader.get("g") == GroupConfig("g", 2)
    for change in (lambda: reader.alter("g", retry_max=1), lambda: reader.delete("g")):
        with pytest.raises(ReadOnlyError):
            change()
    assert entries_in(tmp_path)["g"]["retryMaxTimes"] == 2
