"""Stores of 0.1 go on working: 0.1 itself makes them here, from the wheel that was built from its commit."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.interop.compare import facts

import penstock
from penstock import Message
from penstock.store.store import Store

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 64 * 1024, "geometry.queue_entries": 200, "geometry.index_slots": 100,
    "geometry.index_entries": 400,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    f"{checksum}-{flush}-{write}-{ending}": {
        **SMALL, "log.checksum": checksum, "flush.use": flush, "write.use": write, "ending": ending,
    }
    for checksum in ("crc32", "crc32+record")
    for flush in ("sync", "async")
    for write in ("mmap", "file")
    for ending in ("closed", "killed")
} | {"defaults-closed": {"ending": "closed"}, "defaults-killed": {"ending": "killed"}}  # fmt: skip

WHOSE = """
import json, penstock
from importlib.metadata import entry_points, version
plugins = sorted(str(point.dist._path) for point in entry_points(group="penstock"))
print(json.dumps([penstock.__file__, version("penstock"), plugins]))
"""
# Run by 0.1: one process a store, which closes it or is killed.
MAKER = """
import json, os, pathlib, signal, sys
import penstock
from tests.interop.compare import facts

home, wheel = pathlib.Path(sys.argv[1]), sys.argv[2]
assert penstock.__file__.startswith(wheel), penstock.__file__

def make(path, ending, settings):
    store = penstock.open(path, environ={}, **settings)
    for number in range(150):
        store.put(f"topic{number % 3}", b"one %d " % number * (number % 40), queue=number % 2, tag=f"tag{number % 4}",
                  keys=[f"k{number}", "all"], properties={"p": "v\\u00e9"}, flag=number, born_time_ms=number)
    for size in (3, 48, 600):
        store.put_many([penstock.Message("topic%d" % (n % 3), b"many" * n, queue=n % 2, keys=["m%d" % n]) for n in range(size)])
    store.put("t" * 200, b"a long topic")
    store.commit_offset("group", "topic0", 1, offset=7)
    said = [facts(m) for t, queues in sorted(store.topics().items()) for q in queues for m in store.scan(t, q)]
    path.with_suffix(".json").write_text(json.dumps(said))
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()

for name, settings in json.loads(sys.argv[3]).items():
    child = os.fork()
    if not child:
        try:
            make(home / name, settings.pop("ending"), settings)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status == (signal.SIGKILL if settings["ending"] == "killed" else 0), name
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of 0.1."""
    folder = tmp_path_factory.mktemp("0.1")
    with zipfile.ZipFile(HERE / "penstock-0.1.0-py3-none-any.whl") as packed:
        packed.extractall(folder)
    return folder


def run_old(wheel: Path, script: str, *arguments: str) -> str:
    """Run a script by 0.1, its entry points found before those installed here; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(wheel)}, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of stores that 0.1 made, each with a list of its messages beside it."""
    home = tmp_path_factory.mktemp("stores")
    run_old(wheel, MAKER, str(home), str(wheel), json.dumps(CASES))
    return home


def every(store: Store) -> list[dict[str, Any]]:
    return [
        facts(message)
        for topic, queues in sorted(store.topics().items())
        for queue in queues
        for message in store.scan(topic, queue)
    ]


def said_by_0_1(made: Path, name: str) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = json.loads((made / f"{name}.json").read_text())
    return said


def test_the_stores_are_made_by_0_1_with_its_own_plugins(wheel: Path) -> None:
    path, version, plugins = json.loads(run_old(wheel, WHOSE))
    assert path.startswith(str(wheel))
    assert version == "0.1.0"
    assert {plugin for plugin in plugins if "penstock-" in plugin} == {
        str(wheel / "penstock-0.1.0.dist-info")
    }


@pytest.mark.parametrize("name", CASES)
def test_a_store_of_0_1_is_read_and_written_on(name: str, made: Path) -> None:
    """Every message equal field by field, before and after it was opened for writing and put to."""
    path, said = made / name, said_by_0_1(made, name)
    settings: dict[str, Any] = {k: v for k, v in CASES[name].items() if k not in {"ending", *SMALL}}
    geometry = json.loads((path / "penstock" / "geometry.json").read_text())
    with penstock.open(path, read_only=True) as store:
        assert every(store) == said
        assert len(store.find("topic0", "all", limit=1000)) == 50
    with penstock.open(path, environ={}, **settings) as store:
        assert store.recovery is not None
        assert store.recovery.state == ("clean" if name.endswith("closed") else "abnormal")
        assert store.recovery.cut_bytes == 0
        assert every(store) == said
        assert store.committed_offset("group", "topic0", 1) == 7
        nexts = {(t, q): store.max_offset(t, q) for t, qs in store.topics().items() for q in qs}
        more = [Message(t, b"more", queue=q, keys=["more"]) for t, q in nexts]
        assert len(more) == 7
        for batch in (more[:1], more * 2, more * 30):
            for message, receipt in zip(batch, store.put_many(batch), strict=True):
                assert receipt.queue_offset == nexts[message.topic, message.queue]
                nexts[message.topic, message.queue] += 1
        assert not list(store.verify())
    with penstock.open(path, environ={}, **settings) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert [m for m in every(store) if m["properties"].get("KEYS") != "more"] == said
        assert store.find("topic0", "more")
        assert not list(store.verify())
    kept = json.loads((path / "penstock" / "geometry.json").read_text())
    assert {name: kept[name] for name in geometry} == geometry
