"""Limits of the system: descriptors, file sizes, memory locks. Bounded use, clear errors, and no restart."""

import ctypes
import resource
import textwrap
from pathlib import Path

import pytest
from tests.faults.children import TIMES, run

HEAD = textwrap.dedent("""
    import logging, os, resource, sys
    from pathlib import Path
    import penstock
    from penstock import Message
    from penstock.errors import DiskFullError, SystemLimitError, StoreFailedError
    from penstock.testing.kit import copy_store
    logging.basicConfig(level=logging.WARNING)
    path = sys.argv[1]
    SMALL = {"geometry.segment_bytes": 65536, "geometry.index_slots": 100, "geometry.index_entries": 40000,
             "geometry.queue_entries": 200}
    def descriptors():
        return len(os.listdir("/proc/self/fd"))
""")


def few(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def test_a_store_of_many_segments_and_queues_works_with_64_descriptors(tmp_path: Path) -> None:
    """Each segment once read kept two descriptors for good: a long log could not be read to its end, and
    when retention or a roll met the limit the store stopped for good."""
    lines = run(HEAD + textwrap.dedent("""
        with penstock.open(path, environ={}, retention=[], **SMALL) as store:
            for turn in range(60):
                store.put_many([Message(f"t{n % 100}", b"x" * 1000, queue=n % 4, keys=[f"k{n}"]) for n in range(100)])
                store.flush()
            assert store.stats()["segments"] > 80
            assert sum(len(list(store.scan(f"t{n}"))) for n in range(100)) == 6000
            assert len(store.find("k7", "t7", limit=1000)) == 60
            assert not list(store.verify())
            assert store.discard_before(log_offset=65536 * 20) > 0
        with penstock.open(path, environ={}, retention=[], **SMALL) as store:
            assert store.recovery.state == "clean"
            assert not list(store.verify())
        with penstock.open(path, read_only=True) as store:
            assert not list(store.verify())
            assert store.to_arrow("t3", queue=3).num_rows > 0
        print("fine", descriptors() < 60)
    """), tmp_path / "s", before=lambda: few(64))  # fmt: skip
    assert lines == ["fine True"]


def test_descriptors_that_run_out_refuse_the_put_and_need_no_restart(tmp_path: Path) -> None:
    """A segment that could not be opened for want of a descriptor once stopped the store for good."""
    lines = run(HEAD + textwrap.dedent("""
        with penstock.open(path, environ={}, retention=[], **{**SMALL, "index.flush_interval_ms": 5}) as store:
            store.put("t", b"x" * 60_000, queue=0)
            taken = []
            try:
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            refused = 0
            for _ in range(20):
                try:
                    store.put("t", b"y" * 60_000, queue=0)
                except SystemLimitError as error:
                    assert "Too many open files" in str(error) and "nothing was stored" in str(error)
                    refused += 1
            for fd in taken:
                os.close(fd)
            assert store.put("t", b"z" * 60_000, queue=0).queue_offset == 1
            assert refused == 20
        with penstock.open(path, environ={}, **SMALL) as store:
            assert store.recovery.state == "clean"
            print([m.body[:1] for m in store.scan("t")])
            assert not list(store.verify())
    """), tmp_path / "s", before=lambda: few(64))  # fmt: skip
    assert lines == ["[b'x', b'z']"]


@pytest.mark.parametrize("write", ["mmap", "file"])
def test_a_file_size_limit_refuses_the_put_and_needs_no_restart(write: str, tmp_path: Path) -> None:
    """The way to a full disk without root. EFBIG was once taken for the end of all writing."""
    lines = run(HEAD + textwrap.dedent("""
        SMALL["geometry.segment_bytes"] = 262144
        low, high = resource.getrlimit(resource.RLIMIT_FSIZE)
        with penstock.open(path, environ={}, retention=[], write=sys.argv[2], **SMALL) as store:
            for number in range(2):
                store.put("t", b"%d" % number + b"x" * 120_000, queue=0)
            resource.setrlimit(resource.RLIMIT_FSIZE, (131072, high))
            refused = 0
            for job in (lambda: store.put("t", b"y" * 120_000, queue=0), lambda: store.put_many([Message("t", b"y" * 120_000, queue=0)] * 3)):
                try:
                    job()
                except SystemLimitError as error:
                    assert "File too large" in str(error)
                    refused += 1
            assert refused == 2
            assert [m.body[:1] for m in store.scan("t")] == [b"0", b"1"]
            resource.setrlimit(resource.RLIMIT_FSIZE, (low, high))
            assert store.put("t", b"2", queue=0).queue_offset == 2
        assert not [name for name in os.listdir(os.path.join(path, "penstock")) if name.startswith("new-")]
        with penstock.open(path, environ={}, **SMALL) as store:
            assert store.recovery.state == "clean"
            print([m.body[:1] for m in store.scan("t")], list(store.verify()))
    """), tmp_path / "s", write)  # fmt: skip
    assert lines == ["[b'0', b'1', b'2'] []"]


def test_memory_that_cannot_be_locked_is_said_and_needs_no_restart(tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        # Root may lock what it likes; without this capability it may not (PR_CAPBSET_DROP, CAP_IPC_LOCK).
        ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)

    lines = run(HEAD + textwrap.dedent("""
        for write, alloc in (("transient-pool", "on-demand"), ("mmap", "preallocate")):
            options = {**SMALL, "alloc.preallocate.lock_memory": True}
            with penstock.open(path + write, environ={}, write=write, alloc=alloc, **options) as store:
                for number in range(300):
                    store.put("t", b"x" * 1000, queue=0)
                assert len(list(store.scan("t"))) == 300
            assert penstock.open(path + write, read_only=True).max_offset("t", 0) == 300
        print("fine")
    """), tmp_path / "s", before=no_room)  # fmt: skip
    assert lines == ["fine"]


def test_20000_queues_are_written_read_and_recovered(tmp_path: Path) -> None:
    count = 20_000 if TIMES > 1 else 1_000
    lines = run(HEAD + textwrap.dedent("""
        count = int(sys.argv[2])
        store = penstock.open(path, environ={}, retention=[], **{"index.flush_interval_ms": 3_600_000})
        store.create_topic("t", queues=count)
        store.put_many([Message("t", b"%d" % n, queue=n) for n in range(count)])
        assert store.max_offset("t", count - 1) == 1
        assert len(store.topics()["t"]) == count
        assert descriptors() < 400
        killed = copy_store(Path(path), Path(path + "-killed"))
        store.close()
        with penstock.open(killed, environ={}, retention=[]) as again:
            assert again.recovery.state == "abnormal"
            assert [m.body for m in again.scan("t")] == [b"%d" % n for n in range(count)]
            print(len(again.topics()["t"]), list(again.verify()))
    """), tmp_path / "s", str(count))  # fmt: skip
    assert lines == [f"{count} []"]
