"""Work on a store segment by segment, in processes that share nothing but its files.

For engines that spread work over many processes, Spark for one: a plan is made in one place, its parts go wherever
the store's folder can be read, and what they found comes back as plain values. Segments are independent of each
other, so the answer is the same as that of one process that does it all.

In reading order: `checkup` (verification), `reindex` (queues and index rebuilt), `row_files` (what is sent around for it), `plain_values`.
"""

from penstock.contracts.findings import Finding
from penstock.integrity.verification import Tally
from penstock.segmentwise.checkup import (
    DERIVED,
    WHOLE,
    Checked,
    CheckTask,
    Checkup,
    CheckWorker,
    MessageRange,
    messages_before,
    start_reindex,
)
from penstock.segmentwise.reindex import KEYS, Made, Reindex, ReindexReport, ReindexTask
from penstock.segmentwise.row_files import Stretch

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
    "MessageRange",
    "Reindex",
    "ReindexReport",
    "ReindexTask",
    "Stretch",
    "Tally",
    "messages_before",
    "start_reindex",
]
