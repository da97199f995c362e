"""Mutants that no test can find, because the program does the same: each with the reason in a sentence."""

from typing import NamedTuple


class Equivalent(NamedTuple):
    """A change of a file's lines, without the white space round them, that changes nothing a caller can see."""

    path: str
    before: str
    after: str
    reason: str


EQUIVALENT = (
    Equivalent(
        "core/penstock/store/engine.py",
        "if self.log.appender.is_idle:",
        "if True:",
        "A follower that is awake takes no notice of being woken.",
    ),
    Equivalent(
        "plugins/alloc/penstock_alloc/mmap_writer.py",
        "return stop <= ready_end",
        "return stop < ready_end",
        "Bytes that end where the prepared blocks do go into the file by a write, as all others may.",
    ),
    Equivalent(
        "core/penstock/write/staged_file.py",
        "while at < stop and len(found) < count and stop - at >= _LANE.size:",
        "while at < stop and len(found) < count and stop - at > _LANE.size:",
        "What is left for a cursor without a topic, which is refused there as it is by the check that follows.",
    ),
)


def is_equivalent(path: str, change: tuple[str, str]) -> bool:
    """Tell whether the table has this change."""
    return any((each.path, each.before, each.after) == (path, *change) for each in EQUIVALENT)
