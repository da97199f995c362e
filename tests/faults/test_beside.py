"""Readers in other processes beside a writer that rolls, retains and recycles."""

from pathlib import Path

import pytest
from tests.faults.children import TIMES, start
from tests.lanes import at_night, explored

from penstock.testing import open_store

WRITER = """
import sys
from pathlib import Path
from penstock.testing import open_store
path, alloc, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with open_store(path, alloc=alloc) as store:
    number = 0
    for turn in range(rounds):
        for _ in range(200):
            store.put("t", b"%d:" % number + b"x" * (number * 7 % 3000), queue=number % 3, keys=[f"k{number}"])
            number += 1
        store.flush()
        end = store.stats()["log_end_offset"]
        store.discard_before(log_offset=max(end - 150_000, 0))
print(number)
"""
READER = """
import sys
import penstock
from penstock.errors import OffsetError
path = sys.argv[1]
seen = gone = 0
at = [0, 0, 0]
print("ready", flush=True)
with penstock.open(path, read_only=True, environ={}) as store:
    while True:
        fresh = 0
        for queue in range(3):
            found = store.read("t", queue, at[queue], 64)
            if found.min_offset > at[queue]:
                gone += found.min_offset - at[queue]
            for message in found.messages:
                number, _, rest = message.body.partition(b":")
                number = int(number)
                assert number == 3 * message.queue_offset + queue, (number, queue, message.queue_offset)
                assert rest == b"x" * (number * 7 % 3000), number
                fresh += 1
            at[queue] = max(found.next_offset, found.min_offset)
        low, high = store.min_offset("t", 0), store.max_offset("t", 0)
        try:
            for batch in store.to_reader("t", ["body", "queue_offset"], queue=0, start=max(low, high - 50), stop=high, rows=10):
                for body, ordinal in zip(batch[0].to_pylist(), batch[1].to_pylist()):
                    assert body.partition(b":")[0] == b"%d" % (3 * ordinal), (body, ordinal)
        except penstock.PenstockError as error:
            # Gone under the reader, and said so; never a wrong record.
            assert store.min_offset("t", 0) > low or "damaged" not in str(error), error
        seen += fresh
        if sum(at) >= int(sys.argv[2]):
            break
assert store.lowlevel.damaged_reads == 0
print(seen, gone)
"""


@pytest.mark.parametrize("alloc", [at_night("on-demand"), at_night("preallocate"), "recycle"])
def test_readers_elsewhere_see_right_records_or_that_they_are_gone(
    alloc: str, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with open_store(path, alloc=alloc) as store:
        store.create_topic("t", queues=3)
    rounds = explored(8 * TIMES, least=3)
    readers = [start(READER, path, str(rounds * 200)) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    writer = start(WRITER, path, alloc, str(rounds))
    out, err = writer.communicate(timeout=240)
    assert (writer.returncode, out) == (0, f"{rounds * 200}\n"), err
    for reader in readers:
        out, err = reader.communicate(timeout=240)
        assert reader.returncode == 0, err
        seen, gone = map(int, out.split())
        # What went away between two looks was not counted.
        assert 0 < seen <= rounds * 200 - gone
