"""Directories that other programs wrote open, message by message. Needs no Java."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import unpack
from tests.interop.compare import same

import penstock

HERE = Path(__file__).parent
# Those of timer files are read by `tests/property/test_timer_files.py`.
ARCHIVES = [each for each in sorted(HERE.glob("*.tar.gz")) if not each.name.startswith("timers-")]


def unpacked(archive: Path, target: Path) -> tuple[Path, dict[tuple[str, int], dict[str, Any]]]:
    unpack(archive, target)
    text = archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text()
    return target / "store", {(q["topic"], q["queue"]): q for q in json.loads(text)}


def test_there_are_golden_directories() -> None:
    assert {a.name.removesuffix(".tar.gz") for a in ARCHIVES} == {
        f"java-{version}-{ending}"
        for version in ("4.9.8", "5.3.3")
        for ending in ("clean", "killed")
    }


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda a: a.name)
def test_a_golden_directory_reads_and_opens(archive: Path, tmp_path: Path) -> None:
    root, dumped = unpacked(archive, tmp_path)
    with penstock.open(root, read_only=True) as store:
        count = same(store, dumped)
        assert count > 100
        assert not [f for f in store.verify() if "killed" not in archive.name]
        assert [m.body for m in store.find("k101", "topic1")]
    with penstock.open(root, environ={}) as store:
        assert same(store, dumped) == count
        assert not list(store.verify())
        assert [m.body for m in store.find("k101", "topic1")]
        store.put("topic1", b"one more", queue=0, keys=["more"])
    with penstock.open(root, environ={}) as store:
        assert store.find("more", "topic1")
