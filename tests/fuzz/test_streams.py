import asyncio
import logging
import tracemalloc
from pathlib import Path

from tests.fuzz.streams import StreamFuzz, run_all


def test_every_garbled_stream_ends_in_a_closed_connection_with_bounded_memory(
    tmp_path: Path,
) -> None:
    """`make streams` runs a million of them."""
    fuzz = StreamFuzz(tmp_path)
    # pytest would keep every line.
    logging.disable()
    try:
        check(fuzz)
    finally:
        logging.disable(logging.NOTSET)


def check(fuzz: StreamFuzz) -> None:
    reasons = asyncio.run(run_all(fuzz, 1, 1500))
    assert len(reasons) > 5, reasons
    tracemalloc.start()
    try:
        asyncio.run(run_all(fuzz, 5000, 300))
        before, _ = tracemalloc.get_traced_memory()
        asyncio.run(run_all(fuzz, 6000, 300))
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000
    assert peak < 32 << 20
