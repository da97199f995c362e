"""The files of topics and groups: a broker's form is kept, nothing unreadable is replaced, and a change is durable or not made."""

import errno
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.shop import Shop

from penstock.errors import BusyError, CorruptionError, MessageError, ReadOnlyError, StorageError
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.testing import FaultyFiles, ManualClock, make_context
from penstock_messaging.configuration.auto_topics import AutoTopics
from penstock_messaging.configuration.broker_files import BrokerFile
from penstock_messaging.configuration.broker_json import encoded, in_map_order
from penstock_messaging.configuration.config_table import ConfigTable
from penstock_messaging.configuration.groups import GroupConfig, GroupConfigs, config_of

# The files of real brokers.
GOLDEN = Path(__file__).parents[2] / "golden" / "broker-config"
VERSIONS = ("4.9.7", "5.3.3")
TABLE, GROUP_TABLE = "topicConfigTable", "subscriptionGroupTable"
ONE_TOPIC = b'{"topicConfigTable":{"a":{}}}'
BROKEN = [b"{", b"[]", b'{"topicConfigTable":3}', b"\xff", b"[" * 200_000]


def topics_file(root: Path, **more: Any) -> BrokerFile:
    return BrokerFile(make_context(root, **more), "topics.json", TABLE)


def give(root: Path, name: str, raw: bytes) -> Path:
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(raw)
    return path


# --- JSON in the bytes of brokers


def test_a_table_that_outgrows_its_bins_gets_more_of_them() -> None:
    names = {f"topic-{number}": number for number in range(1535)}
    before = list(in_map_order(names))
    after = list(in_map_order({**names, "one-more": 1535}))
    assert sorted(before) == sorted(set(after) - {"one-more"})
    assert before != [name for name in after if name != "one-more"]


def test_text_is_escaped_as_in_java_and_what_json_cannot_hold_is_refused() -> None:
    text = 'ü"\\\n\x01\x7f\u2028\U0001f600\ud800'
    start = 'ü\\"\\\\\\n\\u0001\\u007F\\u2028\U0001f600'.encode()
    assert encoded(text) == b'"' + start + b'\\ud800"'
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="no number of JSON"):
            encoded({"a": [number]})
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        encoded(deep)


# --- one file of a broker


@pytest.mark.parametrize("version", VERSIONS)
def test_a_brokers_file_keeps_its_form_and_gets_a_new_version(tmp_path: Path, version: str) -> None:
    raw = (GOLDEN / version / "topics.json").read_bytes()
    path = give(tmp_path, "topics.json", raw)
    file = topics_file(tmp_path, clock=ManualClock(5000))
    entries = file.load()
    assert file.has_attributes == (version == "5.3.3")
    file.save(entries)
    # Byte for byte but for these two numbers.
    old: Any = parse_rocketmq_json(raw.decode())["dataVersion"]
    counter = b'"counter":%d,'
    expected = raw.replace(counter % old["counter"], counter % (old["counter"] + 1), 1)
    assert path.read_bytes() == expected.replace(b"%d" % old["timestamp"], b"5000", 1)
    assert path.with_name("topics.json.bak").read_bytes() == raw


def test_a_new_file_is_in_the_form_of_5(tmp_path: Path) -> None:
    file = topics_file(tmp_path, clock=ManualClock(7))
    assert (file.load(), file.exists, file.has_attributes) == ({}, False, True)
    file.save({"b": {"perm": 6}, "a": {}})
    version = '{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":7\n\t}'
    table = '{\n\t\t"a":{},\n\t\t"b":{\n\t\t\t"perm":6\n\t\t}\n\t}'
    expected = f'{{\n\t"dataVersion":{version},\n\t"topicConfigTable":{table}\n}}'
    assert file.path.read_text() == expected
    assert list(file.path.parent.iterdir()) == [file.path], "there is nothing to keep"


@pytest.mark.parametrize("raw", [None, b"", b"null", *BROKEN])
def test_the_backup_counts_where_the_file_does_not(tmp_path: Path, raw: bytes | None) -> None:
    """A broker that is killed while it rewrites the file leaves it empty: that does not become the backup."""
    backup = give(tmp_path, "topics.json.bak", ONE_TOPIC)
    if raw is not None:
        give(tmp_path, "topics.json", raw)
    file = topics_file(tmp_path)
    assert file.load() == {"a": {}}
    assert file.exists
    assert (file.problem is None) == (not raw)
    if not raw:
        file.save(file.load())
        assert b'"a":{}' in file.path.read_bytes()
    assert backup.read_bytes() == ONE_TOPIC


@pytest.mark.parametrize("raw", BROKEN)
@pytest.mark.parametrize("name", ["topics.json", "topics.json.bak"])
def test_what_cannot_be_parsed_is_never_replaced(tmp_path: Path, raw: bytes, name: str) -> None:
    path = give(tmp_path, name, raw)
    file = topics_file(tmp_path)
    assert file.load() == {}
    with pytest.raises(CorruptionError, match=rf"{name} is corrupt .*it is not replaced"):
        file.save({"b": {}})
    assert path.read_bytes() == raw
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_and_a_hostile_number_leave_the_file_as_it_is(tmp_path: Path) -> None:
    hostile = b'{"topicConfigTable":{},"x":1e999}'
    path = give(tmp_path, "topics.json", hostile)
    file = topics_file(tmp_path)
    with pytest.raises(StorageError, match="no number of JSON"):
        file.save(file.load())
    assert path.read_bytes() == hostile
    path.write_bytes(ONE_TOPIC)
    files = FaultyFiles()
    files.plan.fail("create", errno.ENOSPC)
    with pytest.raises(StorageError, match=r"topics\.json could not be written .*unchanged"):
        topics_file(tmp_path, files=files).save({})
    assert path.read_bytes() == ONE_TOPIC


# --- the table in memory, and when it is written


class Table:
    """A table on a disk that can fail."""

    def __init__(self, root: Path) -> None:
        self.root, self.files = root, FaultyFiles()
        self.saved: list[str] = []
        file = topics_file(root, files=self.files)
        self.table = ConfigTable(file, lambda: self.saved.append("before"))
        self.table.load()

    def on_disk(self) -> dict[str, object]:
        return topics_file(self.root).load()


def test_a_change_during_a_saving_is_saved_next_or_refused(tmp_path: Path) -> None:
    """A signal handler of the same thread cannot wait: its own durable change is refused, and it saves nothing."""
    made = Table(tmp_path)

    def handler() -> None:
        made.files.plan.before = None
        made.table.set_later("b", {})
        made.table.save()
        with pytest.raises(BusyError, match="interrupted"):
            made.table.set_now("c", {})

    made.files.plan.before = handler
    made.table.set_now("a", {})
    assert made.on_disk() == {"a": {}}
    assert made.table.is_changed
    made.table.save()
    assert made.on_disk() == {"a": {}, "b": {}}


def test_a_list_that_is_not_saved_is_retried(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.files.plan.fail("rename", errno.ENOSPC, path="topics.json")
    assert shop.store.put("t", b"x", queue=0)
    assert "penstock-topics" not in shop.workers.by_name or shop.step("penstock-topics") == 1
    assert shop.step("penstock-topics", after_ms=400) == 0.6
    assert shop.step("penstock-topics", after_ms=600) == 10
    assert shop.step("penstock-topics", after_ms=10_000) == 10
    assert caplog.text.count("messages are not affected") == 1
    assert "No space left" in shop.messaging.stats()["config_error"]
    shop.files.plan.heal()
    assert shop.step("penstock-topics", after_ms=10_000) is None
    assert shop.messaging.stats()["config_error"] == ""
    assert topics_file(shop.root).load().keys() == {"t"}
    assert shop.store.put("u", b"x", queue=0)
    assert shop.step("penstock-topics", after_ms=999) == 0.001
    shop.close()
    assert topics_file(shop.root).load().keys() == {"t", "u"}


@pytest.mark.parametrize(
    "raw",
    [None, b"", b"{", b"[]", b'{"a": "x"}', b'{"a": []}', b"\xff", b"[" * 100_000, b'{"a": NaN}'],
)
def test_a_list_of_those_that_cannot_be_read_is_logged_with_what_to_do(
    tmp_path: Path, raw: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = AutoTopics(make_context(tmp_path))
    if raw is None:
        file.path.mkdir()
    else:
        file.path.write_bytes(raw)
    assert file.load() == {}
    assert "auto-topics cannot be read" in caplog.text
    assert "penstock topic alter" in caplog.text


# --- groups


def groups_of(root: Path, **more: Any) -> GroupConfigs:
    return GroupConfigs(make_context(root, **more))


def give_groups(root: Path, **entries: Any) -> None:
    give(root, "subscriptionGroup.json", json.dumps({GROUP_TABLE: entries}).encode())


def group_entries(root: Path) -> Any:
    text = (root / "config" / "subscriptionGroup.json").read_text()
    return parse_rocketmq_json(text)[GROUP_TABLE]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_added_group_looks_as_if_the_broker_had_added_it(tmp_path: Path, version: str) -> None:
    """The broker created billing for its first consumer: removed and created again, it is the same in every byte."""
    raw = (GOLDEN / version / "subscriptionGroup.json").read_bytes()
    path = give(tmp_path, "subscriptionGroup.json", raw)
    groups = groups_of(tmp_path)
    assert groups.get("billing") == GroupConfig("billing", 16, 1, True)
    assert groups.delete("billing")
    assert b'"billing"' not in path.read_bytes()
    groups.ensure("billing")
    groups.save()
    table = f'"{GROUP_TABLE}":{{'.encode()
    assert path.read_bytes().partition(table)[2] == raw.partition(table)[2]


def test_a_group_is_created_at_its_first_use_and_saved_later(tmp_path: Path) -> None:
    changes: list[int] = []
    groups = GroupConfigs(make_context(tmp_path), lambda: changes.append(1))
    assert groups.get("g") is None
    assert groups.ensure("g") == groups.ensure("g") == GroupConfig("g")
    assert changes == [1]
    assert not (tmp_path / "config").exists()
    groups.save()
    assert group_entries(tmp_path)["g"]["retryMaxTimes"] == 16
    reader = groups_of(tmp_path, read_only=True)
    assert reader.all() == {"g": GroupConfig("g")}
    groups.alter("g", retry_max=2)
    assert reader.ensure("g") == reader.get("g") == GroupConfig("g", 2)
    for change in (lambda: reader.alter("g", retry_max=1), lambda: reader.delete("g")):
        with pytest.raises(ReadOnlyError):
            change()
    assert groups.delete("g")
    assert not groups.delete("g")
    assert group_entries(tmp_path) == groups.all() == reader.all() == {}
    assert reader.ensure("g") == GroupConfig("g"), "and nothing is added"


def test_what_is_not_given_stays_when_a_group_is_altered(tmp_path: Path) -> None:
    give_groups(tmp_path, g={"brokerId": 7, "later": {}, "retryQueueNums": 2})
    groups = groups_of(tmp_path)
    assert groups.alter("g", retry_max=3) == GroupConfig("g", 3, 2, True)
    assert groups.alter("g", retry_queues=0, is_enabled=False) == GroupConfig("g", 3, 0, False)
    found = group_entries(tmp_path)["g"]
    assert (found["brokerId"], found["later"], found["consumeEnable"]) == (7, {}, False)
    assert groups.alter("new", retry_max=0) == GroupConfig("new", 0)
    assert groups_of(tmp_path).get("new") == GroupConfig("new", 0)


ODD_GROUPS: list[Any] = [
    None,
    3,
    {"retryMaxTimes": "16"},
    {"retryQueueNums": True},
    {"retryMaxTimes": 1 << 31},
    {"retryMaxTimes": -(1 << 31) - 1},
    {"consumeEnable": 1},
]


@pytest.mark.parametrize("entry", ODD_GROUPS)
def test_an_entry_that_cannot_be_understood_is_set_aside_and_kept(
    tmp_path: Path, entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (-(1 << 31), (1 << 31) - 1):
        assert config_of("g", {"retryMaxTimes": number}).retry_max == number
    give_groups(tmp_path, odd=entry)
    groups = groups_of(tmp_path)
    assert groups.ensure("odd") == GroupConfig("odd")
    assert "entry of group 'odd' is not used" in caplog.text
    with pytest.raises(MessageError, match="cannot be changed"):
        groups.alter("odd", retry_max=1)
    groups.ensure("new")
    groups.save()
    assert group_entries(tmp_path)["odd"] == entry
    assert groups.delete("odd")
    assert list(group_entries(tmp_path)) == ["new"]
