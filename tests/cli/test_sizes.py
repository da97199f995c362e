"""What a store is made of: `config PATH` beside its files, `stat --space` beside what the disk says."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock_tools.cli.root import run

SIZES = {"segment_bytes": 65536, "queue_entries": 100, "index_slots": 1000, "index_entries": 4000}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data", environ={}, geometry=SIZES) as store:
        for number in range(300):
            store.put(("a", "b")[number % 3 == 0], bytes(500), queue=0, keys=[str(number)])
    return tmp_path / "data"


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run([*arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_config_shows_what_the_files_of_the_store_have(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {line["key"]: line for line in lines(capsys, "config", str(data))}
    segments = len(list((data / "commitlog").iterdir()))
    assert {key: line["in_store"] for key, line in found.items() if "in_store" in line} == {
        "profile": "embedded",
        "geometry.segment_bytes": f"65536 ({segments} files)",
        "geometry.queue_entries": "100 of 20 bytes (3 files)",
        "geometry.index_slots": "1000, in files of 84040 bytes (1 file)",
        "geometry.index_entries": "4000, in files of 84040 bytes (1 file)",
        "log.checksum": "crc32+record in all of the log",
    }
    assert found["geometry.segment_bytes"]["value"] == 65536
    run(["config", str(data), "--show-origin"])
    shown = capsys.readouterr().out
    assert "in the store" in shown
    assert "origin" in shown


@pytest.mark.parametrize(
    ("checksum", "said"),
    [
        ("crc32", "crc32+record in a part of the log"),
        ("crc32+record", "crc32+record in all of the log"),
    ],
)
def test_the_checksum_is_that_of_the_records(
    checksum: str, said: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(data, environ={}, log={"checksum": checksum}) as store:
        store.put("a", b"x", queue=0)
    found = {
        line["key"]: line
        for line in lines(capsys, "config", str(data), "--set", f"log.checksum={checksum}")
    }
    assert found["log.checksum"]["in_store"] == said
    assert found["log.checksum"]["value"] == checksum


def test_a_store_without_files_and_no_store_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock.open(tmp_path / "new", environ={}).close()
    found = {
        line["key"]: line.get("in_store") for line in lines(capsys, "config", str(tmp_path / "new"))
    }
    assert found["geometry.queue_entries"] == "no file yet"
    assert not any("in_store" in line for line in lines(capsys, "config"))
    assert not any("in_store" in line for line in lines(capsys, "config", str(tmp_path / "none")))


def test_stat_shows_what_takes_the_space(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (facts,) = lines(capsys, "stat", str(data), "--space")
    parts = {part["part"]: part for part in facts["space"]["parts"]}
    for part, folder in (("log", "commitlog"), ("queues", "consumequeue"), ("index", "index")):
        files = [path for path in (data / folder).rglob("*") if path.is_file()]
        assert parts[part]["files"] == len(files)
        assert parts[part]["size"] == sum(path.stat().st_size for path in files)
        said = subprocess.run(
            ["du", "-c", "-B1", *map(str, files)], capture_output=True, text=True, check=True
        )
        assert parts[part]["allocated"] == int(said.stdout.splitlines()[-1].split()[0])
    assert parts["log"]["used"] == facts["log_end_offset"]
    assert parts["queues"]["used"] == 300 * 20
    assert parts["index"]["used"] == 40 + 1000 * 4 + 301 * 20
    topics = facts["space"]["topics"]
    assert [(each["topic"], each["messages"]) for each in topics] == [("a", 200), ("b", 100)]
    assert sum(each["queue_bytes"] for each in topics) == parts["queues"]["allocated"]
    assert 0 < sum(each["log_bytes"] for each in topics) <= parts["log"]["used"]
    (facts,) = lines(capsys, "stat", str(data))
    assert "space" not in facts


def test_stat_shows_the_space_to_people(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stat", str(data), "--space"]) == 0
    shown = capsys.readouterr().out
    for text in ("Space by kind of file", "allocated", "used", "Space by topic", "66."):
        assert text in shown
