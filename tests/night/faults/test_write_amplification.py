"""What a synced put of 1 KiB writes to the disk: the page cache writes whole folios, so large ones must not be made.

In version 0.1 it was 720 KiB under `recycle`, which wrote its zeros 1 MiB at a time.
"""

import textwrap
from pathlib import Path

import pytest
from tests.faults.children import run
from tests.matrix.combos import ALLOWED

KIB_MAX = 32
COMBOS = sorted({(c.write, c.alloc, c.flush) for c in ALLOWED if c.flush in ("sync", "async")})
HEAD = textwrap.dedent("""
    import os, sys, time
    import penstock
    from penstock import Message
    from penstock_tools.matrix.measure import wait_for_quiet, written_bytes
    path, write, alloc, flush = sys.argv[1:]
    SEGMENT, PUTS, BODY = 2 << 20, 600, os.urandom(1024)
    def opened(segment_bytes):
        return penstock.open(path, environ={}, write=write, alloc=alloc, flush=flush, retention=[],
                             **{"geometry.segment_bytes": segment_bytes, "write.transient-pool.lock_memory": False})
    def synced_puts(store):
        # The next segments are made ahead, and with synced pages: on a busy machine that may take its time.
        while store.stats()["strategies"]["alloc"].get("files_ready", 2) < 2:
            time.sleep(0.01)
        wait_for_quiet()
        before = written_bytes()
        for _ in range(PUTS):
            store.put("t", BODY, queue=0)
            if flush != "sync":
                store.flush()
        print((written_bytes() - before) / PUTS / 1024)
""")


@pytest.mark.parametrize(("write", "alloc", "flush"), COMBOS)
def test_a_synced_put_of_1_kib_writes_at_most_32_kib(
    write: str, alloc: str, flush: str, counted_disk: Path
) -> None:
    """In a segment that was used before where those are recycled, long after it was last read or written."""
    script = HEAD + textwrap.dedent("""
        store = opened(SEGMENT)
        log, used = store._engine.log, set()
        batch = [Message("t", BODY, wait=False, queue=0)] * 100
        def roll():
            border = (log.end_offset // SEGMENT + 1) * SEGMENT
            while log.end_offset < border:
                store.put_many(batch)
            store.flush()
            store.max_offset("t", 0)
            wait_for_quiet()
            border -= SEGMENT
            for segment in [each for each in log.log.segments if each.base_offset < border]:
                descriptor = os.open(segment.path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                used.add(os.fstat(descriptor).st_ino)
                os.close(descriptor)
            store.discard_before(log_offset=border)
            wait_for_quiet()
        for turn in range(30):
            roll()
            is_used = os.stat(log.log.segments[-1].path).st_ino in used
            if turn > 3 and (is_used or alloc != "recycle"):
                break
        else:
            raise AssertionError("no segment was recycled")
        synced_puts(store)
        store.close()
    """)
    (kib,) = map(float, run(script, counted_disk / "store", write, alloc, flush))
    print(f"{kib:.1f} KiB a put")
    assert 1 < kib <= KIB_MAX


@pytest.mark.parametrize(
    ("write", "alloc", "flush"), [combo for combo in COMBOS if combo[0] == "mmap"]
)
def test_synced_puts_after_many_that_were_not_write_little_too(
    write: str, alloc: str, flush: str, counted_disk: Path
) -> None:
    """A store through a map read ahead in ever larger folios, so that it came to 65 KiB under `mmap` and `sync`.

    Where no put waits zeros are ahead of the tail, as one folio; synced puts withdraw what is left of it.
    """
    script = HEAD + textwrap.dedent("""
        store, single = opened(64 << 20), [Message("t", BODY, wait=False, queue=0)]
        def zeros_ahead():
            segment = store._engine.log.tail.segment
            return segment.channel._blocks._zeros_end - segment.wrote_position
        for _ in range(20_000):
            store.put_many(single)
        while (write, alloc, flush) == ("mmap", "on-demand", "async") and zeros_ahead() < 100_000:
            store.put_many(single)
        store.flush()
        store.max_offset("t", 0)
        synced_puts(store)
        store.close()
    """)
    (kib,) = map(float, run(script, counted_disk / "store", write, alloc, flush))
    print(f"{kib:.1f} KiB a put")
    assert 1 < kib <= KIB_MAX
