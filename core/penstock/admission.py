"""Says what in a store's folder is not understood, and refuses what would leave it wrong; see `foreign`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher
from penstock.discover import was_made_here
from penstock.errors import ForeignContentError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.foreign import Foreign, look_for_foreign, stopping
from penstock.log import SegmentedLog
from penstock.recovery import RecoveredLog

logger = get_logger(__name__)


def foreign_in(
    files: Files, root: Path, log: SegmentedLog, dispatchers: Iterable[Dispatcher]
) -> tuple[Foreign, ...]:
    """Return what is not understood; `dispatchers` are opened read-only."""
    found = look_for_foreign(files, root, is_made_here=was_made_here(files, root))
    view = RecoveredLog(log, log.committed_offset)
    for dispatcher in dispatchers:
        seen = {each.kind.name for each in found}
        found += [each for each in dispatcher.not_understood(view) if each.kind.name not in seen]
    return tuple(found)


def check_foreign(root: Path, found: Sequence[Foreign], what: str) -> None:
    """Raise if anything found stops writing; name the rest in the log.

    Args:
        root: the store's folder.
        found: what is not understood in it.
        what: what is refused then, as "opening for writing is refused".
    """
    refused = stopping(found)
    if refused:
        listed = [(each.kind.name, each.text) for each in refused]
        raise ForeignContentError(root, what, listed)
    if found:
        texts = "; ".join(each.text for each in found)
        logger.info("%s: not understood, and left alone: %s", root, texts)
