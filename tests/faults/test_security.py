"""Nothing leaves the store's folder, nothing is followed out of it, nobody else may read it, nothing is evaluated."""

import contextlib
import os
import stat
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.faults.children import run

import penstock
from penstock import Message
from penstock.errors import ConfigError, PenstockError, StrayFileError, TopicError
from penstock.format.names import topic_of
from penstock.testing import open_store

NAMES = [
    "..", ".", "a/b", "/abs", "../../etc/passwd", "a\0b", "t" * 300, "", "a\nb", "\ud800", "\x7f", "é" * 128,
]  # fmt: skip
FINE = ["trailing.", "%RETRY%group", "...", "a b", "-rf", "~", "$HOME", "CON", "日本", "a\\b", "*"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_topic_that_is_no_folder_name_is_refused_everywhere(name: str, open_small: OpenStore, tmp_path: Path) -> None:  # fmt: skip
    with open_small() as store:
        jobs: list[Callable[[], object]] = [
            lambda: store.put(name, b"", queue=0), lambda: store.put_many([Message(name, b"", queue=0)]),
            lambda: store.read(name, 0), lambda: store.find("k", name), lambda: list(store.scan(name)),
            lambda: store.min_offset(name, 0), lambda: store.offset_at(name, 0, 0 / 1000),
        ]  # fmt: skip
        for job in jobs:
            with pytest.raises(TopicError):
                job()
    assert topic_of(name.encode("utf-8", "surrogatepass")) is None
    assert set(os.listdir(tmp_path)) == {"store"}


@pytest.mark.parametrize("name", FINE)
def test_a_strange_topic_stays_one_folder_of_the_store(
    name: str, open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        store.put(name, b"x", queue=0, keys=["k"])
        assert [m.body for m in store.find("k", name)] == [b"x"]
        assert list(store.topics(system=True)) == [name]
    assert os.listdir(tmp_path / "store" / "consumequeue") == [name]
    assert set(os.listdir(tmp_path)) == {"store"}


@pytest.mark.parametrize(
    ("mode", "umask", "file", "folder"),
    [("", 0, 0o600, 0o700), ("", 0o022, 0o600, 0o700), ("", 0o077, 0o600, 0o700),
     ("0o640", 0, 0o640, 0o750), ("0o640", 0o077, 0o640, 0o750)],
)  # fmt: skip
def test_files_are_the_owners_alone_or_have_the_mode_that_is_asked_for_whatever_the_umask(
    mode: str, umask: int, file: int, folder: int, tmp_path: Path
) -> None:
    every_mode(tmp_path / "s", mode, umask)
    assert modes(tmp_path / "s") == {("file", file), ("folder", folder)}


def every_mode(path: Path, mode: str, umask: int) -> None:
    run(textwrap.dedent("""
        import os, sys, penstock
        os.umask(int(sys.argv[2]))
        mode = {"files.mode": int(sys.argv[3], 8)} if sys.argv[3] else {}
        sizes = {"geometry.segment_bytes": 65536, "geometry.index_slots": 100, "geometry.index_entries": 400}
        for alloc in ("on-demand", "recycle"):
            with penstock.open(sys.argv[1], environ={}, alloc=alloc, **sizes, **mode) as store:
                for n in range(300):
                    store.put("t", b"x" * 1000, keys=["k"], queue=n % 3)
                store.commit_offset("g", "t", 0, offset=1)
                store.commit_offset("g", "t", 0, offset=2)
                store.flush()
                store.discard_before(log_offset=65536 * 2)
    """), path, str(umask), mode)  # fmt: skip


def modes(path: Path) -> set[tuple[str, int]]:
    found = set()
    for each in (path, *path.rglob("*")):
        about = each.lstat().st_mode
        found.add(("folder" if stat.S_ISDIR(about) else "file", stat.S_IMODE(about)))
    return found


@pytest.mark.parametrize("mode", [0o777, 0o400, 0o1600, 0o000])
def test_a_mode_that_locks_out_the_owner_or_runs_files_is_refused(
    mode: int, open_small: OpenStore
) -> None:
    with pytest.raises(ConfigError, match="owner"):
        open_small(**{"files.mode": mode})


@pytest.mark.parametrize("level", ["topic", "queue"])
def test_a_link_among_the_queues_is_refused_and_never_written_through(
    level: str, open_small: OpenStore, tmp_path: Path
) -> None:
    """A link in place of a topic's folder was passed over at open, and the next put made its queue's files
    wherever the link led."""
    with open_small() as store:
        store.put("t", b"x", queue=0)
    place = tmp_path / "store" / "consumequeue" / "t"
    place = place if level == "topic" else place / "0"
    outside = tmp_path / "outside"
    place.rename(outside)
    before = sorted(path.name for path in outside.rglob("*"))
    place.symlink_to(outside)
    with pytest.raises(StrayFileError, match="link"):
        open_small()
    with penstock.open(tmp_path / "store", read_only=True) as reader:
        assert reader.topics() == {}
        assert reader.read("t", 0).messages == []
    assert sorted(path.name for path in outside.rglob("*")) == before
    place.unlink()
    with open_small() as store:
        assert [m.body for m in store.scan("t")] == [b"x"]


PLACES = [
    "commitlog/00000000000000000000", "consumequeue/t/0/00000000000000000000", "lock", "checkpoint",
    "config/consumerOffset.json", "penstock/progress", "penstock/geometry.json", "penstock", "config", "index",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
@pytest.mark.parametrize("place", PLACES)
def test_whatever_stands_in_place_of_a_file_is_never_followed_and_never_hangs(
    place: str, kind: str, open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        store.put("t", b"x", queue=0, keys=["k"])
        store.commit_offset("g", "t", 0, offset=1)
    victim = tmp_path / "victim"
    victim.write_bytes(b"not yours")
    path = tmp_path / "store" / place
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with contextlib.suppress(PenstockError, OSError), open_small() as store:
        store.committed_offset("g", "t", 0)
        store.commit_offset("g", "t", 0, offset=2)
        store.put("t", b"y", queue=0, keys=["k"])
    assert victim.read_bytes() == b"not yours"


def test_a_second_name_of_an_expired_segment_keeps_its_bytes(tmp_path: Path) -> None:
    """A backup made of hard links was overwritten with zeros when its segments were recycled."""
    with open_store(tmp_path / "s", alloc="recycle", retention=[]) as store:
        for number in range(200):
            store.put("t", b"%d" % number + b"x" * 1000, queue=0)
        store.flush()
        first = tmp_path / "s" / "commitlog" / f"{0:020d}"
        os.link(first, tmp_path / "backup")
        before = first.read_bytes()
        assert store.discard_before(log_offset=65536 * 2) == 2
    assert (tmp_path / "backup").read_bytes() == before


def test_a_compressed_body_is_not_inflated(open_small: OpenStore) -> None:
    """Bodies that a client compressed are handed out as they are: nothing here can be a bomb."""
    import zlib  # noqa: PLC0415 - the one test that needs it

    bomb = zlib.compress(bytes(10 << 20))
    with open_small() as store:
        store.put("t", bomb, queue=0)
        assert next(store.scan("t")).body == bomb
