import asyncio
import gc
import logging
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

from tests.fuzz.streams import StreamFuzz, run_all


def test_every_garbled_stream_ends_in_a_closed_connection_with_bounded_memory() -> None:
    """`make streams` runs a million of them."""
    # In a process of its own: threads of other tests use memory, too.
    asked = [sys.executable, "-m", "tests.fuzz.test_streams"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def check(fuzz: StreamFuzz) -> None:
    reasons = asyncio.run(run_all(fuzz, 1, 1500))
    assert len(reasons) > 5, reasons
    tracemalloc.start()
    asyncio.run(run_all(fuzz, 5000, 300))
    before = traced_bytes()
    asyncio.run(run_all(fuzz, 6000, 300))
    grown = traced_bytes() - before
    assert grown < 200_000, f"{grown} bytes more are in use after 300 streams"
    _, peak = tracemalloc.get_traced_memory()
    assert peak < 32 << 20, f"{peak} bytes were in use"


def traced_bytes() -> int:
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    return size


def main() -> None:
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        check(StreamFuzz(Path(folder)))


if __name__ == "__main__":
    main()
