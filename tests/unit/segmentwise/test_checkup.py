"""Work on a store in pieces: verification and reindex give what one process gives, and survive being killed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import make_restarted

import penstock
from penstock import Message
from penstock.errors import NotAStoreError
from penstock.segmentwise import (
    DERIVED,
    Checkup,
    Reindex,
    ReindexReport,
    messages_before,
    start_reindex,
)

SIZES: dict[str, Any] = {
    "geometry.segment_bytes": 64 * 1024, "geometry.queue_entries": 100,
    "geometry.index_slots": 50, "geometry.index_entries": 400,
}  # fmt: skip
COUNT = 1500


def messages(count: int = COUNT, first: int = 0) -> list[Message]:
    return [
        Message(
            f"topic{n % 3}", b"body %d" % n * (n % 9), queue=n % 4, tag=f"tag{n % 5}" if n % 3 else "",
            keys=[f"k{n % 50}", f"j{n}"] if n % 2 else [],
        )
        for n in range(first, first + count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("segmentwise") / "store"
    with penstock.open(root, environ={}, **SIZES) as store:
        store.put_many(messages())
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def spoil(path: Path, position: int, data: bytes = b"\xa5\x5a") -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def spoil_body(root: Path) -> None:
    """Spoil the body of some record in the second segment."""
    with penstock.open(root, read_only=True, environ={}) as store:
        everything = [m for topic in store.topics() for m in store.scan(topic)]
    victim = next(m for m in everything if m.log_offset > 80_000 and len(m.body) > 40)
    segment = sorted((root / "commitlog").iterdir())[1]
    spoil(segment, segment.read_bytes().index(victim.body) + 5)


def in_one_process(root: Path, *, deep: bool) -> list[Any]:
    with penstock.open(root, read_only=True, environ={}) as store:
        return list(store.verify(deep=deep))


def in_pieces(root: Path, *, deep: bool) -> list[Any]:
    checkup = Checkup(root, deep=deep)
    # A worker each, in an order of its own: nothing may hang on which process had which.
    checked = {piece: checkup.task.worker().check(piece) for piece in reversed(checkup.pieces)}
    return list(checkup.gather(checked))


@pytest.mark.slow
@pytest.mark.parametrize("deep", [True, False])
def test_a_sound_store_has_no_findings(original: Path, deep: bool) -> None:
    checkup = Checkup(original, deep=deep)
    assert checkup.pieces[0] == DERIVED
    assert len(checkup.pieces) > 3
    assert in_pieces(original, deep=deep) == in_one_process(original, deep=deep)


@pytest.mark.parametrize(
    "damage", ["record", "queue entry", "index", "missing segment", "checkpoint", "torn queue"]
)
def test_pieces_find_what_one_process_finds(root: Path, damage: str) -> None:
    segments = sorted((root / "commitlog").iterdir())
    queue = sorted((root / "consumequeue" / "topic1" / "2").iterdir())
    if damage == "record":
        spoil_body(root)
    elif damage == "queue entry":
        spoil(queue[0], 20 * 7 + 3)
    elif damage == "index":
        for path in (root / "index").iterdir():
            spoil(path, 300, b"\xff" * 60)
    elif damage == "missing segment":
        segments[1].unlink()
    elif damage == "checkpoint":
        spoil(root / "checkpoint", 0, b"\x01" * 24)
    else:
        queue[0].unlink()
    expected = in_one_process(root, deep=True)
    assert expected
    assert in_pieces(root, deep=True) == expected


def test_pieces_know_what_the_counts_of_queues_show(tmp_path: Path) -> None:
    """No segment tells by itself which queue offsets are corrupt, nor where a queue began a new generation."""
    root = make_restarted(tmp_path / "store", "t", **SIZES)
    with penstock.open(root, environ={}) as store:
        store.put_many(Message("t", b"x" * 2000) for _ in range(60))
        victim = next(m for m in store.scan("t") if m.queue_offset == 77)
    segment = sorted((root / "commitlog").iterdir())[victim.log_offset // 65536]
    # A queue offset that no record has, in a record without a CRC over the whole of it.
    spoil(segment, victim.log_offset % 65536 + 20, b"\x00\x10")
    expected = in_one_process(root, deep=False)
    assert [f.is_note for f in expected].count(True) == 1
    assert any(f.log_offset == victim.log_offset and not f.is_note for f in expected)
    assert in_pieces(root, deep=False) == expected


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(NotAStoreError):
        Checkup(tmp_path / "other")
    with pytest.raises(NotAStoreError):
        start_reindex(tmp_path / "nothing")


@pytest.mark.slow
def test_messages_before_a_log_offset(original: Path) -> None:
    with penstock.open(original, read_only=True, environ={}) as store:
        everything = [m for topic in store.topics() for m in store.scan(topic)]
        for bound in (0, 64 * 1024, 100_000, 1 << 40):
            ranges = list(messages_before(store, bound))
            assert len(ranges) == 12
            count = sum(each.stop - each.start for each in ranges)
            assert count == sum(m.log_offset < bound for m in everything)


# --- reindex


def reindex(root: Path, shards: int = 3, *, keep: bool = True) -> ReindexReport:
    with start_reindex(root, shards=shards) as work:
        return work_through(work, keep=keep)


def work_through(work: Reindex, *, keep: bool = True) -> ReindexReport:
    stretches = [work.task.condense(base) for base in reversed(work.bases)]
    # As where a task was lost and tried again.
    work.task.condense(work.bases[0])
    work.task.make(work.parts[0])
    return work.finish(stretches, {part: work.task.make(part) for part in work.parts}, keep=keep)
