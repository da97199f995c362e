"""What a store is made of: `config PATH` beside its files, `stat --space` beside what the disk says."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run

import penstock

SIZES = {"segment_bytes": 65536, "queue_entries": 100, "index_slots": 1000, "index_entries": 4000}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data", environ={}, geometry=SIZES) as store:
        for number in range(300):
            store.put(("a", "b")[number % 3 == 0], bytes(500), queue=0, keys=[str(number)])
    return tmp_path / "data"


def config(*words: object) -> dict[str, dict[str, Any]]:
    """Return the lines of `config` by their keys."""
    done = run("config", *words, "--json")
    assert done.code == 0
    return {line["key"]: line for line in done.rows}


def test_config_shows_what_the_files_of_the_store_have(data: Path) -> None:
    found = config(data)
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
    shown = run("config", data, "--show-origin").out
    assert "in the store" in shown
    assert "origin" in shown


@pytest.mark.parametrize(("checksum", "part"), [("crc32", "a part"), ("crc32+record", "all")])
def test_the_checksum_is_that_of_the_records(checksum: str, part: str, data: Path) -> None:
    with penstock.open(data, environ={}, log={"checksum": checksum}) as store:
        store.put("a", b"x", queue=0)
    found = config(data, "--set", f"log.checksum={checksum}")["log.checksum"]
    assert (found["in_store"], found["value"]) == (f"crc32+record in {part} of the log", checksum)


def test_a_store_without_files_and_no_store_say_so(tmp_path: Path) -> None:
    penstock.open(tmp_path / "new", environ={}).close()
    assert config(tmp_path / "new")["geometry.queue_entries"]["in_store"] == "no file yet"
    for nothing in ([], [tmp_path / "none"]):
        assert not any("in_store" in line for line in config(*nothing).values())


def test_stat_shows_what_takes_the_space(data: Path) -> None:
    (facts,) = run("stat", data, "--space", "--json").rows
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
    assert "space" not in run("stat", data, "--json").rows[0]
    shown = run("stat", data, "--space").out
    for text in ("Space by kind of file", "allocated", "used", "Space by topic", "66."):
        assert text in shown
