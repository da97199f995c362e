"""One file of a broker: what is kept, when the backup counts, and that nothing that cannot be parsed is replaced."""

import errno
import json
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.contracts import Context
from penstock.errors import CorruptionError, StorageError
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.testing import FaultyFiles, ManualClock, SimulatedDisk, make_context
from penstock.testing.platter import Image, Survival
from penstock_messaging.configuration.broker_files import BrokerFile

GOLDEN = Path(__file__).parents[2] / "golden" / "broker-config"
TABLE = "topicConfigTable"


def made(context: Context) -> BrokerFile:
    return BrokerFile(context, "topics.json", TABLE)


def written(root: Path, name: str, raw: bytes) -> Path:
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_brokers_file_keeps_its_form_and_gets_the_next_version(tmp_path: Path, version: str) -> None:  # fmt: skip
    raw = (GOLDEN / version / "topics.json").read_bytes()
    path = written(tmp_path, "topics.json", raw)
    file = made(make_context(tmp_path, clock=ManualClock(5000)))
    entries = file.load()
    assert file.has_attributes == (version == "5.3.3")
    file.save(entries)
    before, after = parse_rocketmq_json(raw.decode()), parse_rocketmq_json(path.read_text())
    old: Any = before.pop("dataVersion")
    assert after.pop("dataVersion") == {**old, "counter": old["counter"] + 1, "timestamp": 5000}
    assert after == before
    # Byte for byte but for these two numbers.
    expected = raw.replace(b'"counter":%d,' % old["counter"], b'"counter":%d,' % (old["counter"] + 1), 1)  # fmt: skip
    assert path.read_bytes() == expected.replace(b"%d" % old["timestamp"], b"5000", 1)
    assert path.with_name("topics.json.bak").read_bytes() == raw


def test_a_new_file_is_in_the_form_of_5(tmp_path: Path) -> None:
    file = made(make_context(tmp_path, clock=ManualClock(7)))
    assert file.load() == {}
    assert not file.exists
    assert file.has_attributes
    file.save({"b": {"perm": 6}, "a": {}})
    text = '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":7\n\t},\n\t"topicConfigTable":{\n\t\t"a":{},\n\t\t"b":{\n\t\t\t"perm":6\n\t\t}\n\t}\n}'  # fmt: skip
    assert file.path.read_text() == text
    assert not (tmp_path / "config" / "topics.json.bak").exists()


def test_whatever_is_not_understood_is_kept(tmp_path: Path) -> None:
    odd = {"zeta": [1, {"x": None}], "dataVersion": {"extra": 1.5}, TABLE: {"a": 7, "b": [True]}, "alpha": {"1": 2}}  # fmt: skip
    path = written(tmp_path, "topics.json", json.dumps(odd).encode().replace(b'"1"', b"1"))
    file = made(make_context(tmp_path))
    file.save({**file.load(), "c": {}})
    after = parse_rocketmq_json(path.read_text())
    version: Any = after.pop("dataVersion")
    assert (version["counter"], version["extra"]) == (1, 1.5)
    del odd["dataVersion"]
    assert after == {**odd, TABLE: {"a": 7, "b": [True], "c": {}}}


@pytest.mark.parametrize("raw", [None, b"", b"{", b"[]", b'{"topicConfigTable":3}', b"\xff", b"[" * 200_000, b"null"])  # fmt: skip
def test_the_backup_counts_where_the_file_does_not(tmp_path: Path, raw: bytes | None) -> None:
    written(tmp_path, "topics.json.bak", b'{"topicConfigTable":{"a":{}}}')
    if raw is not None:
        written(tmp_path, "topics.json", raw)
    file = made(make_context(tmp_path))
    assert file.load() == {"a": {}}
    assert file.exists
    assert (file.problem is None) == (not raw)


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"topicConfigTable":3}', b"\xff", b"[" * 200_000])
@pytest.mark.parametrize("spare", [None, b"{", b'{"topicConfigTable":{"a":{}}}'])
def test_a_file_that_cannot_be_parsed_is_never_replaced(tmp_path: Path, raw: bytes, spare: bytes | None) -> None:  # fmt: skip
    path = written(tmp_path, "topics.json", raw)
    if spare is not None:
        written(tmp_path, "topics.json.bak", spare)
    file = made(make_context(tmp_path))
    entries = file.load()
    with pytest.raises(CorruptionError, match=r"topics\.json is corrupt .*it is not replaced"):
        file.save({**entries, "b": {}})
    assert path.read_bytes() == raw
    backup = path.with_name("topics.json.bak")
    assert (backup.read_bytes() if backup.exists() else None) == spare


def test_an_unreadable_backup_of_a_missing_file_is_not_replaced_either(tmp_path: Path) -> None:
    backup = written(tmp_path, "topics.json.bak", b"{")
    file = made(make_context(tmp_path))
    assert file.load() == {}
    with pytest.raises(CorruptionError, match="bak"):
        file.save({})
    assert backup.read_bytes() == b"{"


def test_an_empty_file_that_a_killed_broker_leaves_does_not_replace_the_backup(tmp_path: Path) -> None:  # fmt: skip
    backup = written(tmp_path, "topics.json.bak", b'{"topicConfigTable":{"a":{}}}')
    path = written(tmp_path, "topics.json", b"")
    file = made(make_context(tmp_path))
    file.save(file.load())
    assert b'"a":{}' in path.read_bytes()
    assert backup.read_bytes() == b'{"topicConfigTable":{"a":{}}}'


def test_a_full_disk_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, "topics.json", b'{"topicConfigTable":{}}')
    files = FaultyFiles()
    file = made(make_context(tmp_path, files=files))
    file.load()
    files.plan.fail("create", errno.ENOSPC)
    with pytest.raises(StorageError, match=r"topics\.json could not be written .*unchanged"):
        file.save({"a": {}})
    assert path.read_bytes() == b'{"topicConfigTable":{}}'


def test_hostile_numbers_are_not_written(tmp_path: Path) -> None:
    path = written(tmp_path, "topics.json", b'{"topicConfigTable":{},"x":1e999}')
    file = made(make_context(tmp_path))
    with pytest.raises(StorageError, match="no number of JSON"):
        file.save(file.load())
    assert b"1e999" in path.read_bytes()


@pytest.mark.parametrize("survival", list(Survival))
def test_a_crash_at_any_moment_leaves_the_file_before_or_after_a_change(survival: Survival) -> None:
    disk = SimulatedDisk()
    images: list[Image] = []
    file = made(make_context(Path("/s"), files=disk))
    file.save({"a": {}})
    disk.plan.before = lambda: images.append(disk.image())
    file.save({"a": {}, "b": {}})
    file.save({"b": {}, "c": {}})
    images.append(disk.image())
    assert len(images) > 10
    seen = []
    for at, image in enumerate(images):
        left = SimulatedDisk.after(image, survival, Random(at))
        again = made(make_context(Path("/s"), files=left))
        seen.append("".join(again.load()))
        assert again.problem is None
    assert [name for name, _ in groupby(seen)] == ["a", "ab", "bc"]
