"""Crashes of a store that is taken for one of many queues: files synced together, ends noted at a clean close."""

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL
from tests.matrix.combos import AS_MANY

import penstock
from penstock.files import volume
from penstock.recovery import restore
from penstock.testing import FaultyFiles
from penstock.testing.crash import Plot, explore
from penstock.testing.kit import copy_store

MANY: dict[str, Any] = {**SMALL, **AS_MANY}


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "MANY_FOLDERS", 2)
    monkeypatch.setattr(volume, "_type_of", lambda _: 0xEF53)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("seed", "settings"), [
    (1, {}), (2, {"flush": "sync"}), (3, {"write": "file", "log.checksum": "crc32"}), (4, {"alloc": "recycle"}),
])  # fmt: skip
def test_no_crash_loses_anything(seed: int, settings: dict[str, Any]) -> None:
    plot = Plot(seed=seed, settings={**AS_MANY, **settings})
    outcomes = list(explore(plot, cases=80))
    assert len(outcomes) >= 60
    assert [outcome for outcome in outcomes if outcome.problem] == []


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return a store that was not closed."""
    with penstock.open(tmp_path / "store", environ={}, **MANY) as store:
        for number in range(40):
            store.put("topic", b"%d" % number, queue=number % 4)
        store.flush()
        return copy_store(tmp_path / "store", tmp_path / "killed")


def names_synced(killed: Path, number: int | None) -> tuple[int, int]:
    """Open a killed store; returns how many syncs of a folder and of the whole its names took."""
    files = FaultyFiles()
    counts: list[tuple[int, int]] = []
    whole = restore._sync_file_system

    def counted(*given: Any) -> list[str]:
        if number is not None:
            files.plan.fail("sync_volume", number)
        before = files.plan.counts.get("sync_volume", 0)
        left = whole(*given)
        counts.append((len(left), files.plan.counts["sync_volume"] - before))
        files.plan.heal()
        return left

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "_sync_file_system", counted)
        with penstock.open(killed, files=files, environ={}, **MANY) as store:
            assert store.recovery is not None
            assert store.recovery.state == "abnormal"
            assert len(list(store.scan("topic"))) == 40
    (found,) = counts
    return found


def test_names_are_made_durable_together(killed: Path) -> None:
    assert names_synced(killed, None) == (0, 1)


def test_where_that_fails_each_folder_tells_by_itself(killed: Path) -> None:
    """The failure may be of another program's file: that is no reason to refuse the opening."""
    left, wholes = names_synced(killed, errno.EIO)
    assert (left > 8, wholes) == (True, 1)
