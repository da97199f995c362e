"""What goes on as it was where 0.1 made a store, and what 0.1 does with a store that this version has written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.golden.test_of_0_1 import SMALL, made, run_old, wheel

import penstock
from penstock.store.store import Store
from penstock.testing.kit import copy_store

__all__ = ["made", "wheel"]

# Run by 0.1: tries to open a store, and says what came of it.
OPENER = """
import json, sys
import penstock

try:
    store = penstock.open(sys.argv[1], environ={}, read_only=sys.argv[2] == "read")
    said = ["opened", sum(len(list(store.scan(t, q))) for t, queues in store.topics().items() for q in queues)]
    store.close()
except penstock.PenstockError as error:
    said = [type(error).__name__, str(error)]
print(json.dumps(said))
"""


def policies(store: Store) -> list[tuple[str, Any]]:
    assert store._engine is not None
    return [(policy.name, policy.options) for policy in store._engine.retention._policies]


@pytest.mark.parametrize("name", ["defaults-closed", "defaults-killed"])
def test_a_store_of_0_1_keeps_its_checksum_and_its_retention(
    name: str, made: Path, tmp_path: Path
) -> None:
    """Nobody is asked: 0.1 wrote no CRC property and let segments go after 72 hours, so that goes on, twice."""
    path = copy_store(made / name, tmp_path / "s")
    for _ in range(2):
        with penstock.open(path, environ={}) as store:
            assert [policy for policy, _ in policies(store)] == ["age"]
            options = policies(store)[0][1]
            assert (options.reserved_hours, options.delete_when) == (72.0, "04")
            receipt = store.put("new", b"written on")
            record = (path / "commitlog" / f"{0:020d}").read_bytes()[receipt.log_offset :][:200]
            assert b"written on" in record
            assert b"__CRC32#" not in record
    kept = json.loads((path / "penstock" / "geometry.json").read_text())
    assert (kept["segment_bytes"], kept["queue_entries"]) == (64 << 20, 300_000)


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def put_some(path: Path, **settings: Any) -> Path:
    """Let this version write to a store, and copy it while it is open, as if its writer had died."""
    with penstock.open(path, environ={}, **settings) as store:
        for number in range(100):
            store.put("t", b"of this version %d" % number, keys=[f"k{number}"])
        store.topics()
        store.flush()
        return copy_store(path, path.with_name("killed"))


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize("made_by", ["this version", "0.1"])
def test_0_1_refuses_to_write_where_this_version_has_written_and_changes_nothing(
    made_by: str, ending: str, wheel: Path, made: Path, tmp_path: Path
) -> None:
    """It knows neither where records end in a CRC nor the generations of a queue: what it wrote would be wrong."""
    path = tmp_path / "closed"
    if made_by == "0.1":
        shutil.copytree(made / "crc32-sync-mmap-closed", path, copy_function=shutil.copy2)
    put_some(path, **SMALL)
    path = path.with_name(ending)
    before = contents(path)
    said, text = json.loads(run_old(wheel, OPENER, str(path), "write"))
    assert said == "FormatVersionError", f"{said}: {text}"
    assert "penstock/progress" in text
    assert contents(path) == before
    with penstock.open(path, environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == ("clean" if ending == "closed" else "abnormal")
        assert store.recovery.cut_bytes == 0
        assert [m.body for m in store.scan("t")][-1] == b"of this version 99"
        assert not list(store.verify())
