"""An import that is interrupted at any moment and run again stores each row once: crashes before every call, a full disk."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conftest import SMALL
from tests.lanes import cases

import penstock
from penstock.errors import PenstockError
from penstock.store.store import Store
from penstock.testing import SimulatedDisk
from penstock.testing.kit import InlineWorkers
from penstock.testing.platter import Image, Survival
from penstock_tools.exchange import ImportOptions, import_file

MODULE = "penstock_tools.exchange.importing"
ROOT = Path("/store")
ROWS = 26
SETTINGS: dict[str, Any] = {**SMALL, "retention.use": [], "geometry.segment_bytes": 8192}


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches, and notes that are behind the log by several of them."""
    monkeypatch.setattr("penstock_tools.exchange.rows._ROWS", 4)
    monkeypatch.setattr(f"{MODULE}._NOTE_ROWS", 8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with plain rows, rows that `put` would refuse, equal rows that follow each other, and bad rows."""
    lines = []
    for number in range(ROWS):
        row: dict[str, Any] = {"topic": "ab"[number % 2], "queue": number % 3, "body": f"row {number // 4}"}  # fmt: skip
        if number % 5 == 0:
            row["properties"] = {"DELAY": "3", "n": str(number // 4)}
        if number % 7 == 3:
            # Refused by its type, and by the store.
            row = (
                {"topic": "a", "body": 1.5}
                if number % 2
                else {"topic": "a", "body": "", "queue": -1}
            )
        lines.append(json.dumps(row))
    path = tmp_path / "rows.ndjson"
    path.write_text("\n".join(lines) + "\n")
    return path


def opened(disk: SimulatedDisk, **more: Any) -> Store:
    given = {"spawn": InlineWorkers(), "clock": disk.clock, **SETTINGS, **more}
    return penstock.open(ROOT, files=disk, environ={}, **given)


def load(store: Store, source: Path) -> tuple[int, int, int]:
    report = import_file(store, source, ImportOptions(skip_bad=True))
    return report.stored + report.stored_before, report.skipped, report.rows


def content(store: Store) -> list[tuple[str, int, int, bytes, tuple[tuple[str, str], ...]]]:
    return [
        (m.topic, m.queue, m.queue_offset, m.body, tuple(sorted(m.properties.items())))
        for topic in store.topics()
        for m in store.scan(topic)
    ]


def images_of(source: Path, flush: str) -> tuple[list[Image], list[Any], tuple[int, int, int]]:
    """Import once; returns the disk before each call that changes it, what the store has at the end, and the counts."""
    disk, images = SimulatedDisk(), []
    with opened(disk, flush=flush) as store:
        disk.plan.before = lambda: images.append(disk.image())
        counts = load(store, source)
        disk.plan.before = None
        whole = content(store)
    print(len(images), "calls change the disk")
    return images, whole, counts


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_after_a_crash_before_any_call_the_next_import_completes_it(
    source: Path, flush: str
) -> None:
    images, whole, counts = images_of(source, flush)
    assert len(whole) == counts[0] == ROWS - counts[1]
    assert counts[1] == 4
    # A first call writes the note, so that every call after it is before or after some row.
    assert len(images) > 30
    states = [(at, survival) for at in range(len(images)) for survival in Survival]
    partly = Counter[bool]()
    for at, survival in cases(states, flush):
        disk = SimulatedDisk.after(images[at], survival, Random(at))
        with opened(disk, flush=flush) as store:
            before = len(content(store))
            partly[0 < before < len(whole)] += 1
            assert load(store, source) == counts, (at, survival, before)
            assert content(store) == whole, (at, survival, before)
            # And once more: there is nothing left to do.
            assert load(store, source) == counts
            assert content(store) == whole, (at, survival)
            assert list(store.verify(deep=True)) == []
    assert partly[True] > 5


def test_after_a_full_disk_the_next_import_completes_it(source: Path) -> None:
    disk = SimulatedDisk()
    with opened(disk) as store:
        least = disk.used
        counts = load(store, source)
        most, whole = disk.used, content(store)
    stopped = 0
    for capacity in range(least, most, max((most - least) // 24, 1)):
        disk = SimulatedDisk(capacity=capacity)
        try:
            with opened(disk) as store:
                load(store, source)
        except (PenstockError, OSError):
            stopped += 1
        disk.capacity = 1 << 40
        with opened(disk) as store:
            assert load(store, source) == counts
            assert content(store) == whole
    assert stopped > 8
