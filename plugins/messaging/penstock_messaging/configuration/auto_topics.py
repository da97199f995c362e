"""The file `penstock/auto-topics`: topics that their first message created, and that puts give more queues.

Layout: JSON, topic to the number of queues that Penstock gave it::

    {"orders": 4, "payments": 12}

A topic of `config/topics.json` with more queues than here, or with other permissions, was changed by a broker: its
number of queues is fixed from then on. The file is written before `topics.json`, and an entry is removed after the
change there that ends it. So after a crash in between, no topic that Penstock created lacks its entry.

If the file is lost, every topic counts as declared, and has the queues that `topics.json` gives it.
"""

import json
import operator
from collections.abc import Mapping

from penstock.contracts import SIDE_FOLDER, Context
from penstock.escape import get_logger

logger = get_logger(__name__)

_FILE_BYTES_MAX = 64 << 20


class AutoTopics:
    """Reads and writes the file. Not thread-safe."""

    def __init__(self, context: Context) -> None:
        self._files = context.files
        self.path = context.root / SIDE_FOLDER / "auto-topics"

    def load(self) -> dict[str, int]:
        """Return the number of queues by topic; empty if there is no file, or it cannot be read, which is logged."""
        try:
            found = json.loads(self._files.read_state(self.path, _FILE_BYTES_MAX))
            return {topic: operator.index(count) for topic, count in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            logger.warning(
                "%s cannot be read (%s): topics that messages created have a fixed number of queues now; use "
                "`penstock topic alter` to give one more", self.path, error,
            )  # fmt: skip
            return {}

    def save(self, counts: Mapping[str, int]) -> None:
        """Replace the file, durably."""
        raw = json.dumps(dict(sorted(counts.items())), indent=1)
        self._files.write_whole(self.path, raw.encode())
