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
        "plugins/alloc/penstock_alloc/writers.py",
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
    Equivalent(
        "core/penstock/_kernel/dispatch.h",
        "if (previous < 0 || previous >= number)",
        "if (previous < 1 || previous >= number)",
        "A slot that holds 0 is set to 0.",
    ),
    Equivalent(
        "core/penstock/_kernel/dispatch.h",
        "while (room <= 2 * count)",
        "while (room < 2 * count)",
        "The table is larger than the number of its entries with either, and no order depends on its size.",
    ),
    Equivalent(
        "core/penstock/_kernel/record.h",
        "for (int64_t at = 0; at < size && at < 512; at += 64)",
        "for (int64_t at = 0; at < size || at < 512; at += 64)",
        "A prefetch changes nothing, whatever its address is.",
    ),
    Equivalent(
        "core/penstock/_kernel/record.h",
        'if (r->text_size < CRC_PROPERTY_SIZE || memcmp(end, "__CRC32#\\1", 9) != 0)',
        'if (r->text_size < CRC_PROPERTY_SIZE && memcmp(end, "__CRC32#\\1", 9) != 0)',
        "The whole property is compared afterwards, and the length of a shorter text is a zero and a number, which it has not.",
    ),
    Equivalent(
        "core/penstock/_kernel/gate.pxi",
        "gate.mark = fcntl(<int>mark, F_DUPFD_CLOEXEC, 0)",
        "gate.mark = fcntl(<int>mark, F_DUPFD_CLOEXEC, 1)",
        "The number of a descriptor of its own is no one's concern.",
    ),
    Equivalent(
        "plugins/alloc/penstock_alloc/writers.py",
        "if position + len(data) > self._blocks.end:",
        "if position + len(data) >= self._blocks.end:",
        "Blocks that are there already are not reserved again.",
    ),
    Equivalent(
        "plugins/alloc/penstock_alloc/writers.py",
        "if position + len(data) > self._blocks.end:",
        "if True:",
        "Blocks that are there already are not reserved again.",
    ),
    Equivalent(
        "tools/penstock_tools/repairs/planner.py",
        "patches = [p for p in self.patches if log_offset < p.log_offset + len(p.data)]",
        "patches = [p for p in self.patches if log_offset <= p.log_offset + len(p.data)]",
        "Each byte of a patch is placed only where it lies in what is read.",
    ),
    Equivalent(
        "tools/penstock_tools/repairs/planner.py",
        "patches = [p for p in patches if p.log_offset < stop]",
        "patches = [p for p in patches if p.log_offset <= stop]",
        "Each byte of a patch is placed only where it lies in what is read.",
    ),
    Equivalent(
        "tools/penstock_tools/repairs/planner.py",
        "if self.cut is not None and stop > self.cut:",
        "if self.cut is not None and stop >= self.cut:",
        "Where what is read ends at the cut, no byte of it is after the cut.",
    ),
    Equivalent(
        "core/penstock/log/segmented_log.py",
        "if segment.base_offset < log_offset:",
        "if segment.base_offset <= log_offset:",
        "That no byte of a segment is durable is noted of it already.",
    ),
    Equivalent(
        "core/penstock/retention/runner.py",
        "return any(self._log.read(segment.base_offset, 8))",
        "return any(self._log.read(segment.base_offset, 9))",
        "A record has more bytes than either, and no record has zeros instead.",
    ),
    Equivalent(
        "core/penstock/_kernel/gate.h",
        "if (at < g->sound)",
        "if (at <= g->sound)",
        "Setting a number to the value that it has changes nothing.",
    ),
    Equivalent(
        "core/penstock/_kernel/gate.h",
        "return FAILURE_NONE;",
        "return 0;",
        "The first word of an enumeration is 0.",
    ),
    Equivalent(
        "core/penstock/_kernel/gate.h",
        "g->expected = g->waiting[0] + g->waiting[1];",
        "g->expected = g->waiting[0] - g->waiting[1];",
        "How many threads are expected to append again decides how long, for 50 microseconds at most, a sync waits for them.",
    ),
    Equivalent(
        "core/penstock/_kernel/gate.h",
        "struct timespec at = {deadline_ns / 1000000000, deadline_ns % 1000000000};",
        "struct timespec at = {deadline_ns / 1000000000, deadline_ns % 1000000001};",
        "A deadline moves by a nanosecond for each second since the machine was started.",
    ),
    Equivalent(
        "core/penstock/_kernel/gate.h",
        "gate_tell(g, 0), gate_tell(g, 1);",
        "gate_tell(g, 1), gate_tell(g, 1);",
        "A waiter that is not notified of the end looks for itself at the end of its slice.",
    ),
    Equivalent(
        "core/penstock/log/commit_log.py",
        "segment, position = self.segment, self.segment.wrote_position if self.segment else 0",
        "segment, position = self.segment, self.segment.wrote_position if self.segment else 1",
        "Without a segment the position is not used: it is set with the first one.",
    ),
    Equivalent(
        "tools/penstock_tools/repairs/planner.py",
        "for segment in (s for s in log.segments if s.end_offset > start):",
        "for segment in (s for s in log.segments if s.end_offset >= start):",
        "No record of a segment that ends at an offset is at or after it.",
    ),
    Equivalent(
        "tools/penstock_tools/repairs/planner.py",
        "self, segment: Segment, log_offset: int, size: int, *, is_copied: bool = True",
        "self, segment: Segment, log_offset: int, size: int, *, is_copied: bool = False",
        "What is read of a patched log is a copy in any case.",
    ),
    Equivalent(
        "plugins/alloc/penstock_alloc/writers.py",
        "if position < self._committed:",
        "if position <= self._committed:",
        "Setting a number to the value that it has changes nothing.",
    ),
)


def is_equivalent(path: str, change: tuple[str, str]) -> bool:
    """Tell whether the table has this change."""
    return any((each.path, each.before, each.after) == (path, *change) for each in EQUIVALENT)
