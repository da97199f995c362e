"""The third fields of queue entries that stay when a record is dispatched again, though Penstock would write others.

* Of a delayed message it is the delivery time. The log does not say what a level of a broker means that is configured with
  other delay levels. So a time that is there, and can be one of a level, is right.
* Where a broker wrote extension files it is the address of a unit (see `queue_extension`), which may hold the bitmap of a filter.
"""

from penstock.contracts.dispatcher import SCHEDULE_TOPIC as _SCHEDULE_TOPIC
from penstock.format.arrays import Bools, Int64s, np
from penstock_index.queue_files import ENTRY
from penstock_index.queue_runs import Run
from penstock_index.queue_state import Queue

SCHEDULE_TOPIC = _SCHEDULE_TOPIC.decode()
# Levels are whole seconds, minutes, hours or days. So no two times of one message differ in a single bit: 1000 divides no power of two.
_UNIT_MS = 1000
# A longer delay is corruption.
_DELAY_MAX_MS = 366 * 24 * 3_600_000


def are_delivery_times(codes: Int64s, store_times: Int64s) -> Bools:
    """Return which tag codes can be the delivery time of a message that was stored at that time, in Unix milliseconds."""
    delays = codes - store_times
    found: Bools = (delays >= 0) & (delays <= _DELAY_MAX_MS) & (delays % _UNIT_MS == 0)
    return found


def with_present_codes(queue: Queue, run: Run) -> Run:
    """Return a run with the third fields that its entries have in the queue already, if they can be right."""
    count = min(max(queue.max_offset - run.ordinal, 0), len(run.store_times))
    if count == 0:
        return run
    entries = np.frombuffer(run.data, ENTRY.dtype).copy()
    there = queue.folder.read(run.ordinal, run.ordinal + count)
    ours = entries[: len(there)]
    codes, times = there["tag_code"].astype(np.int64), run.store_times[: len(there)]
    units = queue.extension.units(codes)
    # A unit that is left over may have the right tag code, and the bitmap of another record.
    is_right = (units["size"] == 0) | (units["store_time_ms"] == times)
    codes = np.where(units["size"] > 0, units["tag_code"], codes).astype(np.int64)
    is_same = codes == ours["tag_code"]
    is_right &= (
        is_same | are_delivery_times(codes, times) if run.topic == SCHEDULE_TOPIC else is_same
    )
    kept = is_right & (there["log_offset"] == ours["log_offset"]) & (there["size"] == ours["size"])
    ours["tag_code"][kept] = there["tag_code"][kept]
    return run._replace(data=entries.tobytes())
