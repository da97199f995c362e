"""A broker's configuration as settings of ours, and back."""

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.config.broker_conf import from_broker_conf, to_broker_conf
from penstock.config.sources import build_config, gather
from penstock.contracts.base import Geometry
from penstock.errors import ConfigError
from penstock.plugins.registry import load_registry
from penstock.store.store import Store
from penstock_tools.cli.root import run

REGISTRY = load_registry()


def test_a_brokers_file_gives_its_sizes_and_policies() -> None:
    given = from_broker_conf("""
        # a comment
        mappedFileSizeCommitLog=1048576
        mappedFileSizeConsumeQueue = 6000000
        flushDiskType=SYNC_FLUSH
        fileReservedTime=48
        deleteWhen=04;16
        enabledAppendPropCRC=true
        brokerName=a
    """)
    found = build_config(gather(None, {}, given), REGISTRY)
    assert found.geometry.segment_bytes == 1048576
    assert found.geometry.queue_entries == 300_000
    values = (found.flush.use, found.log.checksum, found.profile)
    assert values == ("sync", "crc32+record", "rocketmq")
    assert found.options["retention", "age"].reserved_hours == 48
    assert found.options["retention", "age"].delete_when == "04;16"


def test_a_brokers_disk_level_over_the_forced_one_is_taken_as_that() -> None:
    found = from_broker_conf("diskMaxUsedSpaceRatio=88\nfileReservedTime=48\n")
    assert found["retention.disk-ratio.early_percent"] == 85
    assert found["retention.disk-ratio.reserved_hours"] == 48
    assert found["retention.use"] == ["age", "disk-ratio"]
    assert from_broker_conf("diskMaxUsedSpaceRatio=5\n")["retention.disk-ratio.early_percent"] == 10


def opened(root: Path, **settings: Any) -> Store:
    return penstock.open(root, environ={}, **settings)


@pytest.mark.slow
def test_what_the_broker_must_be_told_is_what_its_file_tells_us(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = Geometry(segment_bytes=8192, queue_entries=7, index_slots=11, index_entries=90)
    given = from_broker_conf(to_broker_conf(sizes, tmp_path / "s"))
    read = build_config(gather(None, {}, given), REGISTRY).geometry
    assert [read.segment_bytes, read.queue_entries, read.index_slots, read.index_entries] == [8192, 7, 11, 90]  # fmt: skip
    opened(tmp_path / "s", **{f"geometry.{k}": v for k, v in {
        "segment_bytes": 8192, "queue_entries": 7, "index_slots": 11, "index_entries": 90,
    }.items()}).close()  # fmt: skip
    assert run(["config", str(tmp_path / "s"), "--broker-conf"]) == 0
    printed = capsys.readouterr().out
    assert printed == to_broker_conf(sizes, tmp_path / "s")
    file = tmp_path / "broker.conf"
    file.write_text(printed)
    penstock.open(tmp_path / "s", environ={}, **from_broker_conf(printed)).close()
    assert run(["config", "--broker-conf", str(file), "--json"]) == 0
    assert '"geometry.queue_entries", "value": 7' in capsys.readouterr().out
    assert run(["config", "--broker-conf"]) == 2
    assert "put its path first" in capsys.readouterr().err


def test_what_a_broker_needs_not_told_here_is_passed_over() -> None:
    plain = from_broker_conf("")
    assert from_broker_conf("# flushDiskType=SYNC_FLUSH\nbrokerName=a\nno line at all\n") == plain
    assert from_broker_conf("transientStorePoolEnable=false\nwarmMapedFileEnable=no") == plain


def test_switches_pick_strategies() -> None:
    found = from_broker_conf("transientStorePoolEnable=true\nwarmMapedFileEnable=true\nflushDiskType=ASYNC_FLUSH")  # fmt: skip
    values = (found["write.use"], found["alloc.use"], found["flush.use"])
    assert values == ("transient-pool", "preallocate", "async")


def test_a_number_that_is_none_is_an_error_that_names_its_key() -> None:
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog is '1G'"):
        from_broker_conf("mappedFileSizeCommitLog=1G")


def test_a_queue_file_of_no_whole_entry_is_rounded_up() -> None:
    assert from_broker_conf("mappedFileSizeConsumeQueue=41")["geometry.queue_entries"] == 3


def test_a_path_is_written_as_properties_files_have_it() -> None:
    lines = to_broker_conf(Geometry(), Path("/a\\b")).splitlines()
    assert "# storePathRootDir=/a\\\\b" in lines
    assert "mappedFileSizeConsumeQueue=200000" in lines
