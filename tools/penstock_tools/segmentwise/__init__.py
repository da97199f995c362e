"""Work on a store segment by segment, in processes that share only its files.

For engines that distribute work over many processes, for example Spark: one process makes a plan, its tasks run
wherever the store's folder can be read, and their results are returned as plain values. Segments are independent of
each other, so the result is the same as that of a single process.

In reading order: `checkup` (verification), `reindex` (queues and index rebuilt).
"""

from penstock.contracts.dispatcher import Finding
from penstock.integrity.verification import Tally
from penstock_tools.segmentwise.checkup import (
    DERIVED,
    WHOLE,
    Checked,
    CheckTask,
    Checkup,
    CheckWorker,
    messages_before,
    start_reindex,
)
from penstock_tools.segmentwise.reindex import (
    KEYS,
    Made,
    Reindex,
    ReindexReport,
    ReindexTask,
    Stretch,
)

__all__ = [
    "DERIVED",
    "KEYS",
    "WHOLE",
    "CheckTask",
    "CheckWorker",
    "Checked",
    "Checkup",
    "Finding",
    "Made",
    "Reindex",
    "ReindexReport",
    "ReindexTask",
    "Stretch",
    "Tally",
    "messages_before",
    "start_reindex",
]
