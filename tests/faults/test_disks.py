"""Real disks: one that is full, one that turns read-only, and segments that somebody takes away."""

import contextlib
import os
import shutil
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import OpenStore, messages_in
from tests.faults.children import TIMES, run, say, start
from tests.lanes import at_night, eventually

import penstock
from penstock.errors import CorruptionError, StorageError, StoreFailedError


@contextlib.contextmanager
def disk(folder: Path, kind: str, options: str, *, megabytes: int) -> Iterator[Path]:
    """A mounted disk; the test skips, or fails in CI, where none can be made."""
    how = ["-t", "tmpfs", "-o", f"size={megabytes}m,{options}", f"t{uuid.uuid4().hex[:6]}"]
    is_made = True
    if kind == "ext4":
        image = folder.with_name("image")
        image.write_bytes(b"")
        os.truncate(image, megabytes << 20)
        make = ["mkfs.ext4", "-q", "-F", "-b", "4096", str(image)]
        is_made = bool(shutil.which(make[0])) and not subprocess.run(make, check=False).returncode
        how = ["-o", f"loop,{options}", str(image)]
    folder.mkdir()
    mount = ["mount", *how, str(folder)]
    if not is_made or subprocess.run(mount, capture_output=True, check=False).returncode:
        why = "no file system can be made and mounted here; test_limits.py fills a file size limit instead"
        if os.environ.get("CI") and os.getuid() == 0:
            pytest.fail(f"root is here, so this must run: {why}")
        pytest.skip(why)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """On a tmpfs even a look into a hole takes a page."""
    with disk(tmp_path / "ext4", "ext4", "errors=remount-ro", megabytes=24) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk", "tmpfs", "nr_inodes=2000", megabytes=2) as made:
        yield made


def device_of(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.fixture(params=["ext4", "tmpfs"])
def real_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MiB; ext4 reads ahead as far as on a large disk, so that its folios are as large."""
    with disk(tmp_path / request.param, request.param, "relatime", megabytes=40) as made:
        if request.param == "ext4":
            Path(f"/sys/dev/block/{device_of(made)}/queue/read_ahead_kb").write_text("1024")
        yield made


HEAD = textwrap.dedent("""
    import os, sys, penstock
    from penstock import Message
    from penstock.errors import *
    path, write, alloc, flush = sys.argv[1:5]
    sizes = {"geometry.segment_bytes": 131072, "geometry.index_slots": 100, "geometry.index_entries": 400,
             "geometry.queue_entries": 200, "index.flush_interval_ms": 5, "write.transient-pool.lock_memory": False}
    ballast = os.path.join(os.path.dirname(path), "ballast")
    def fill():
        with open(ballast, "wb") as file:
            try:
                while True:
                    file.write(bytes(4096)); file.flush()
            except OSError:
                try: file.close()
                except OSError: pass
""")

WAYS = [
    ("mmap", "on-demand", "async"), ("file", "on-demand", "sync"), ("mmap", "preallocate", "async"),
    ("mmap", "recycle", "sync"), ("transient-pool", "on-demand", "async"),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("write", "alloc", "flush"), WAYS)
def test_a_full_disk_refuses_reads_on_and_heals_without_a_restart(
    write: str, alloc: str, flush: str, small_disk: Path
) -> None:
    """A store into a hole of a full disk kills the process: no writer of ours may meet one."""
    lines = run(HEAD + textwrap.dedent("""
        with penstock.open(path, environ={}, write=write, alloc=alloc, flush=flush, retention=[], **sizes) as store:
            number = 0
            for turn in range(3):
                refused = 0
                fill()
                for job in range(60):
                    try:
                        if job % 2:
                            store.put("t", b"%d:" % number + b"x" * 30_000, keys=[f"k{number}"], queue=0)
                            number += 1
                        else:
                            store.put_many([Message("t", b"%d:" % (number + n) + b"x" * 20_000, queue=0) for n in range(10)])
                            number += 10
                    except DiskFullError as error:
                        refused += 1
                assert refused > 30, refused
                try:
                    store.commit_offset("g", "t", 0, offset=number)
                except (StorageError, CommitError):
                    assert store.committed_offset("g", "t", 0) != number or turn
                # Where the queues lack messages for want of room, reading says so.
                try:
                    seen = [int(m.body.split(b":")[0]) for m in store.scan("t")]
                    assert seen == list(range(number))
                except DispatcherFailedError as error:
                    assert "No space left" in str(error), error
                    assert store._engine.follower.troubles
                os.unlink(ballast)
                store.put("t", b"%d:again" % number, queue=0)
                number += 1
            store._engine.follower.finish()  # the retry is now, not in a second
            store.flush()
            assert [int(m.body.split(b":")[0]) for m in store.scan("t")] == list(range(number))
            assert not list(store.verify())
        assert not [n for n in os.listdir(path + "/penstock") if n.startswith("new-")]
        with penstock.open(path, environ={}, retention=[], **sizes) as store:
            assert store.recovery.state == "clean"
            assert sum(1 for _ in store.scan("t")) == number
        print("fine")
    """), small_disk / "store", write, alloc, flush)  # fmt: skip
    assert lines == ["fine"]


MORE_WAYS = [
    (write, alloc, flush)
    for write, flush in (("mmap", "async"), ("file", "sync"), ("transient-pool", "async"))
    for alloc in ("on-demand", "preallocate", "recycle")
]  # fmt: skip


FILL_AT_EVERY_STEP = """
sizes |= {"geometry.segment_bytes": 3 << 20, "geometry.index_slots": 5000, "geometry.index_entries": 90}
def read_all():
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    while file.read(65536):
                        pass
            except FileNotFoundError:
                pass
sent, refused = [], 0
lefts, jobs = (0, 1, 2, 3, 5, 8, 13, 40, 70, 130, 300, 513, 700, 1100), 14
if alloc != "on-demand":
    # Two segments lie ready, whole.
    lefts, jobs = (0, 3, 60, 900), 56
store = penstock.open(path, environ={}, write=write, alloc=alloc, flush=flush, retention=["size"], **sizes,
                      **{"retention.size.bytes_max": 6 << 20, "retention.pause_ms": 0})
for left in lefts:
    store.retain()
    read_all()
    fill()
    os.truncate(ballast, max(os.path.getsize(ballast) - left * 4096, 0))
    for job in range(10 * jobs):
        # What lies ready lasts longer on a slow machine.
        if job >= jobs and (refused or left != lefts[-1]):
            break
        number = len(sent)
        try:
            if job % 7 == 3:
                many = [Message("t", b"%d:" % (number + n) + b"x" * 30_000, keys=[f"k{number + n}"], queue=0) for n in range(20)]
                store.put_many(many)
                sent += [m.body for m in many]
            elif job % 7 == 5:
                store.put(f"other-{left}-{job}", b"y" * 100, keys=["y"], queue=0)
            else:
                body = b"%d:" % number + b"x" * (100, 9_000, 70_000)[job % 3]
                store.put("t", body, keys=[f"k{number}", f"l{number}"], queue=0)
                sent.append(body)
        except DiskFullError:
            refused += 1
        read_all()
        if job == 9:
            try:
                store.commit_offset("g", "t", 0, offset=store.min_offset("t", 0))
            except (StorageError, OSError):
                pass
            except CommitError:
                assert not sent, "a queue that has messages is known"
    os.unlink(ballast)
    store._engine.follower.finish()  # the retry is now, not in a second
    low = store.min_offset("t", 0)
    assert [m.body for m in store.scan("t")] == sent[low:], left
assert refused, "the disk was never full"
assert len(store.find(f"k{len(sent) - 1}", "t")) == 1
assert not list(store.verify())
store.close()
with penstock.open(path, environ={}, retention=[], **sizes) as store:
    assert store.recovery.state == "clean"
    low = store.min_offset("t", 0)
    assert [m.body for m in store.scan("t")] == sent[low:]
print("fine")
"""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("write", "alloc", "flush"), MORE_WAYS)
def test_a_disk_that_fills_at_any_step_is_an_error_never_a_death(
    write: str, alloc: str, flush: str, real_disk: Path
) -> None:
    """Blocks come in steps: a new segment, a step, a queue file, an index file or a mark may find none.

    The whole files are read meanwhile, as a backup does: that leaves folios in the page cache of which a part has no
    blocks, and a store into the other part died of SIGBUS.
    """
    lines = run(HEAD + FILL_AT_EVERY_STEP, real_disk / "store", write, alloc, flush)
    assert lines == ["fine"]


@pytest.mark.parametrize("write", ["mmap", at_night("file")])
def test_a_killed_store_is_opened_on_a_disk_that_is_full(write: str, real_disk: Path) -> None:
    """An error or a store, but no death. On ext4 it is a sparse copy, with holes where its pages were zero.

    On a tmpfs even a look into a hole through a map takes a page, so there it is the store as the kill left it.
    """
    say(HEAD + textwrap.dedent("""
        sizes |= {"geometry.segment_bytes": 3 << 20, "geometry.index_slots": 5000}
        store = penstock.open(path, environ={}, write=write, **sizes)
        for number in range(50):
            store.put("t", b"%d:" % number + bytes(9000), keys=[f"k{number}"], queue=0)
        store.flush()
        assert store.max_offset("t", 0) == 50
        os.kill(os.getpid(), 9)
    """), real_disk / "first", write, "", "")  # fmt: skip
    if real_disk.name == "tmpfs":
        (real_disk / "first").rename(real_disk / "store")
    else:
        first, store = str(real_disk / "first"), str(real_disk / "store")
        subprocess.run(["cp", "-a", "--sparse=always", first, store], check=True)
    lines = run(HEAD + textwrap.dedent("""
        fill()
        for turn in range(3):
            try:
                with penstock.open(path, environ={}, write=write) as store:
                    assert sum(1 for _ in store.scan("t")) >= 50
                    for _ in range(30):
                        try:
                            store.put("t", bytes(3000), queue=0)
                        except DiskFullError:
                            pass
            except (OSError, PenstockError) as error:
                print(type(error).__name__, file=sys.stderr)
        os.unlink(ballast)
        with penstock.open(path, environ={}, write=write) as store:
            assert [m.body[:3] for m in store.scan("t")][:50] == [b"%d:" % n + bytes(2 - len(str(n))) for n in range(50)]
            assert not list(store.verify())
        print("fine")
    """), real_disk / "store", write, "", "")  # fmt: skip
    assert lines == ["fine"]


def test_a_sparse_segment_of_java_on_a_full_disk_is_an_error_not_a_death(small_ext4: Path) -> None:
    """A process that stores through a map into a hole of a full disk dies by SIGBUS."""
    lines = run(HEAD + textwrap.dedent("""
        with penstock.open(path, environ={}, **sizes) as store:
            store.put("t", b"x" * 1000, queue=0)
        segment = path + "/commitlog/" + "0" * 20
        data = open(segment, "rb").read(4096)
        os.unlink(segment)
        with open(segment, "wb") as file:
            file.write(data); file.truncate(131072)
        fill()
        try:
            with penstock.open(path, environ={}, **sizes) as store:
                store.put("t", b"y" * 60_000, queue=0)
        except (OSError, PenstockError) as error:
            print(type(error).__name__)
        os.unlink(ballast)
        with penstock.open(path, environ={}, **sizes) as store:
            store.put("t", b"y" * 60_000, queue=0)
            print(store.max_offset("t", 0), list(store.verify()))
    """), small_ext4 / "store", "", "", "")  # fmt: skip
    assert lines[1:] == ["2 []"]


def test_a_segment_cut_short_by_others_costs_a_reader_an_error_not_its_life(
    open_small: OpenStore, tmp_path: Path
) -> None:
    """A map of a file that somebody shortens kills whoever looks at it; readers of other folders use plain reads."""
    with open_small(retention=[]) as store:
        for number in range(200):
            store.put("t", b"%d" % number + b"x" * 1000, queue=0)
    lines = run(textwrap.dedent("""
        import os, sys, penstock
        with penstock.open(sys.argv[1], read_only=True) as store:
            following = store.scan("t")
            next(following)
            os.truncate(sys.argv[1] + "/commitlog/" + "0" * 20, 8192)
            left = [m.body for m in following]
            assert 100 < len(left) < 199
            print("alive", store.read("t", 0, 20).status)
    """), tmp_path / "store")  # fmt: skip
    assert lines[0].startswith("alive")


def test_a_disk_that_turns_read_only_stops_writing_by_name_and_reading_goes_on(
    small_ext4: Path, open_small: OpenStore
) -> None:
    name = Path(f"/sys/dev/block/{device_of(small_ext4)}").resolve().name
    trigger = Path(f"/sys/fs/ext4/{name}/trigger_fs_error")
    if not trigger.exists():
        pytest.skip("this kernel cannot be asked for a file system error")
    store = open_small(path=small_ext4 / "store", flush="sync")
    receipts = [store.put("t", b"%d" % n + b"x" * 1000, queue=0, keys=["k"]) for n in range(20)]
    store.stats()
    store.flush()
    trigger.write_text("a test of a store\n")
    with pytest.raises((StoreFailedError, OSError)):
        for _ in range(200):
            store.put("t", b"y" * 1000, queue=0)
    assert [m.body[:2] for m in store.scan("t")][:1] == [b"0x"], "reading goes on"
    with pytest.raises((StorageError, OSError)):
        store.close()
    with penstock.open(small_ext4 / "store", read_only=True) as reader:
        assert sum(1 for _ in reader.scan("t")) >= sum(r.is_durable for r in receipts) == 20
    before = sorted(str(p) for p in small_ext4.rglob("*"))
    with pytest.raises(OSError, match="Read-only file system"):
        penstock.open(small_ext4 / "store", environ={})
    assert sorted(str(p) for p in small_ext4.rglob("*")) == before, "nothing was made"


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_segment_removed_under_the_store_is_never_acknowledged_as_on_disk(
    flush: str, open_small: OpenStore, tmp_path: Path
) -> None:
    """Writes to a file that had lost its name were acknowledged as durable, and gone with the close."""
    store = open_small(flush=flush, retention=[])
    for number in range(150):
        store.put("t", b"%d" % number + b"x" * 1000, queue=0)
    store.flush()
    with penstock.open(tmp_path / "store", read_only=True) as reader:
        eventually(lambda: reader.max_offset("t", 0) == 150, "the background thread publishes all")
    last = max((tmp_path / "store" / "commitlog").iterdir())
    last.unlink()
    with pytest.raises(StoreFailedError, match="was removed"):
        for _ in range(5):
            store.put("t", b"lost", queue=0)
            store.flush()
    with pytest.raises(StorageError):
        store.close()
    with pytest.raises(CorruptionError, match="restore the file from a copy") as caught:
        open_small()
    assert caught.value.path == last
    with penstock.open(tmp_path / "store", read_only=True) as reader:
        bodies = [m.body for m in reader.scan("t")]
    assert bodies == [b"%d" % n + b"x" * 1000 for n in range(len(bodies))]
    assert len(bodies) > 100


def test_an_old_segment_removed_under_the_store_is_told_at_the_close(
    open_small: OpenStore, tmp_path: Path
) -> None:
    store = open_small(retention=[])
    for number in range(250):
        store.put("t", b"%d" % number + b"x" * 1000, queue=0)
    store.flush()
    assert sum(1 for _ in store.scan("t")) == 250
    (tmp_path / "store" / "commitlog" / f"{65536:020d}").unlink()
    assert sum(1 for _ in store.scan("t")) > 180
    assert store.put("t", b"goes on", queue=0).queue_offset == 250
    with pytest.raises(StorageError, match="was removed"):
        store.close()
    assert (tmp_path / "store" / "abort").exists()
    with penstock.open(tmp_path / "store", read_only=True) as reader:
        assert 180 < sum(1 for _ in reader.scan("t")) < 251


def test_a_killed_writer_on_a_full_disk_opens_again_when_there_is_space(small_disk: Path) -> None:
    for _ in range(TIMES):
        script = HEAD + textwrap.dedent("""
            store = penstock.open(path, environ={}, flush="sync", retention=[], **sizes)
            number = store.max_offset("t", 0)
            fill()
            print("full", flush=True)
            while True:
                try:
                    store.put("t", b"%d" % number + b"x" * 3000, queue=0)
                    number += 1
                    print(number, flush=True)
                except DiskFullError:
                    print("refused", flush=True)
        """)  # fmt: skip
        process = start(script, small_disk / "store", "", "", "")
        assert process.stdout is not None
        acknowledged = 0
        for line in process.stdout:
            if line.startswith("refused"):
                break
            acknowledged = int(line) if line.strip().isdigit() else acknowledged
        process.kill()
        process.communicate()
        (small_disk / "ballast").unlink()
        with penstock.open(small_disk / "store", environ={}, retention=[]) as store:
            bodies = [m.body for m in messages_in(store, "t")]
            assert bodies == [b"%d" % n + b"x" * 3000 for n in range(len(bodies))]
            assert len(bodies) >= acknowledged
            assert not list(store.verify())


@pytest.mark.parametrize("alloc", ["on-demand", "preallocate", "recycle"])
def test_a_batch_over_many_segments_writes_into_files_that_keep_their_names(
    alloc: str, open_small: OpenStore, tmp_path: Path
) -> None:
    """Between two pieces of a batch the allocator was asked for the segment that the batch had already, made
    it anew under the same name, and what was written and acknowledged went with the nameless old file."""
    with open_small(alloc=alloc, retention=[], flush="sync") as store:
        for turn in range(5 * TIMES):
            batch = [
                penstock.Message("t", b"%d:" % (turn * 30 + n) + b"x" * 20_000, queue=0)
                for n in range(30)
            ]
            assert all(receipt.is_durable for receipt in store.put_many(batch))
        count = store.max_offset("t", 0)
    with penstock.open(tmp_path / "store", read_only=True) as reader:
        seen = [int(m.body.split(b":")[0]) for m in reader.scan("t")]
        assert seen == list(range(count))
        assert not list(reader.verify())
