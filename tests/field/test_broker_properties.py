r"""A broker's configuration is read as Java's `Properties.load` reads it, and a value that Java does not take is refused."""

from pathlib import Path

import pytest
from tests.cli.commands import run

from penstock.config.broker_conf import from_broker_conf
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "fileReservedTime=48",
        "fileReservedTime = 48",
        "fileReservedTime:48",
        "fileReservedTime : 48",
        "fileReservedTime 48",
        "fileReservedTime\t48",
        "  \f fileReservedTime=48",
        "fileReservedTime=\\\n   48",
        "fileReserved\\\n  Time=4\\\r\n\t8",
        "fileReservedTime=\\u0034\\u0038",
        "file\\u0052eservedTime=48",
        "fileReservedTime=+48",
        "#fileReservedTime=1\\\nfileReservedTime=48",
        "!fileReservedTime=1\nfileReservedTime=48",
        "fileReservedTime=1\rfileReservedTime=48",
        "\ufefffileReservedTime=48",
        "\u00ef\u00bb\u00bffileReservedTime=48",
        "name=a\\\\\nfileReservedTime=48",
        "name=\x85fileReservedTime\nfileReservedTime=48",
        "fileReservedTime=48\\",
    ],
)
def test_a_number_is_found_however_it_is_written(text: str) -> None:
    """Only `name=value` on one line was read; any other setting was passed over without a word."""
    assert from_broker_conf(text)["retention.age.reserved_hours"] == 48


@pytest.mark.parametrize(
    "text", ["# fileReservedTime=48", "name=a\\\nfileReservedTime=48", "file\\=ReservedTime=48", "fileReservedTime2=48"]
)  # fmt: skip
def test_what_java_does_not_read_as_the_setting_is_none(text: str) -> None:
    assert "retention.age.reserved_hours" not in from_broker_conf(text)


@pytest.mark.parametrize(
    "value",
    ["", "48 ", "4_8", "48h", "1.5", "0x30", "2147483648", "-2147483649", "9" * 400, "four"],
)
def test_an_integer_that_java_does_not_take_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"fileReservedTime is .* in the broker.conf"):
        from_broker_conf(f"fileReservedTime={value}\n")


def test_one_setting_has_64_bits() -> None:
    given = from_broker_conf(f"osPageCacheBusyTimeOutMills={2**62}")
    assert given["log.busy_ms"] == 2**62
    with pytest.raises(ConfigError, match="osPageCacheBusyTimeOutMills"):
        from_broker_conf(f"osPageCacheBusyTimeOutMills={2**63}")


@pytest.mark.parametrize(("value", "used"), [("true", True), ("TRUE", True), ("true ", False), ("1", False)])  # fmt: skip
def test_a_truth_is_as_java_takes_it(value: str, used: bool) -> None:
    found = from_broker_conf(f"transientStorePoolEnable={value}")
    assert found.get("write.use") == ("transient-pool" if used else None)


def test_a_flush_type_that_no_broker_has_is_refused() -> None:
    """It was taken for asynchronous: weaker than the file may have meant."""
    assert from_broker_conf("flushDiskType:SYNC_FLUSH")["flush.use"] == "sync"
    for value in ("sync_flush", "SYNC", ""):
        with pytest.raises(ConfigError, match=r"flushDiskType is .* SYNC_FLUSH, ASYNC_FLUSH"):
            from_broker_conf(f"flushDiskType={value}")


def test_an_escape_that_java_refuses_is_refused() -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        from_broker_conf("storePathRootDir=C:\\users")


def test_a_file_in_latin_1_is_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes(b"brokerName=caf\xe9\nfileReservedTime : 7\n")
    run("config", "--broker-conf", file, "--json").expect(0, out='"retention.age.reserved_hours"')
