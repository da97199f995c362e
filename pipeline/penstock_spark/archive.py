"""The retention policy `archive`: a segment's messages are exported to Parquet before the segment is deleted.

The policy itself expires no segment. The hook `penstock_segment_expired` archives the segments that other policies
expire, in the store's own process. If archiving fails, that segment and all later ones are kept. If `retention.use`
names the policy and it is not installed, the store does not open, so no segment is deleted without having been
archived. Messages that the job `export` has exported into the same folder are not archived again, and that job does not
export archived messages again.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

import penstock
from penstock.contracts import Context, DiskUse, RetentionPolicy, SegmentInfo, Vote
from penstock.errors import MissingExtraError
from penstock.escape import get_logger

logger = get_logger(__name__)

_MODE = 0o600


@attrs.frozen(kw_only=True)
class ArchiveOptions:
    """Options of the archive.

    Attributes:
        to: the folder for the Parquet files; `<the store's folder>-archive` beside it if empty. A relative path is
            relative to the parent of the store's folder.
        name: the store's name in file names, of ASCII letters, digits, `.`, `_` and `-`, with a letter or a digit
            first; its folder's name if empty. Stores that archive into one folder need different names.
    """

    to: str = ""
    name: str = ""


class ArchiveRetention(RetentionPolicy):
    """Archives the segments that other policies expire. Holds no state."""

    name: ClassVar[str] = "archive"
    Options: ClassVar[type] = ArchiveOptions

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        if context.read_only:
            return
        if importlib.util.find_spec("pyarrow") is None:
            raise MissingExtraError("pyarrow", "arrow", "the retention policy archive")
        from penstock_spark.export_folder import check_store_name  # noqa: PLC0415 - pyarrow is an extra

        check_store_name(options.name or context.root.name)

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Expire nothing."""
        return Vote(0, "the policy archive expires nothing by itself")


def archive(root: Path, log_stop: int, options: ArchiveOptions, mode: int | None = None) -> int:
    """Export the messages before a log offset that the archive does not have yet; return their number.

    Args:
        root: the store's folder; it may be open for writing.
        log_stop: log offset at which the segment to be deleted ends.
        options: of the policy.
        mode: permissions of new files; the owner's alone if None.
    """
    from penstock_spark.export_folder import Exported, missing  # noqa: PLC0415 - pyarrow is an extra
    from penstock_spark.stores import StoreSpan  # noqa: PLC0415 - imports much
    from penstock_tools.segmentwise import messages_before  # noqa: PLC0415 - needed when something goes

    target = root.parent / (Path(options.to).expanduser() if options.to else f"{root.name}-archive")
    name = options.name or root.name
    count = 0
    with Exported(target, mode or _MODE) as exported, penstock.open(root, read_only=True) as store:
        exported.claim(name, store, log_stop)
        exported.clear(name)
        done = exported.done(name)
        for topic, queue, low, high in messages_before(store, log_stop):
            whole = StoreSpan(name, topic, queue, low, high, store.lowlevel.topic_generation(topic))
            ranges = done.setdefault((exported.name_of(topic), whole.queue_name), [])
            for start, stop in missing(ranges, low, high):
                piece = whole._replace(start=start, stop=stop)
                count += exported.write(piece, store).rows
                ranges.append((start, stop))
        exported.note(name, done)
    logger.info("archived %d messages of %s before log offset %d", count, root, log_stop)
    return count
