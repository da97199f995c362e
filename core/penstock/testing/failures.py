"""Failure exploration: runs a story on a simulated disk in which one system call fails.

The n-th call of one kind fails, once or from then on, with an error that such a call may return. The store may then
refuse operations with one of its own errors, but its guarantees must hold, also after a power cut: a failed sync
leaves pages that look written but are not. If a call fails while a crashed store is opened, only that opening may
fail, and no data may be lost.
"""

import errno
from collections.abc import Iterator, Sequence
from random import Random

import attrs

from penstock.errors import PenstockError
from penstock.testing.crash import RAISED, Look, Memory, Plot, Stage
from penstock.testing.disk import SimulatedDisk
from penstock.testing.kit import ManualClock
from penstock.testing.platter import Survival
from penstock.testing.story import Story, bodies_of

# The errors with which each kind of call may fail.
ERRNOS = {
    "open": (errno.EMFILE, errno.EIO), "pread": (errno.EIO,), "map": (errno.ENOMEM, errno.EMFILE),
    "create": (errno.ENOSPC, errno.EMFILE), "pwrite": (errno.EIO, errno.ENOSPC),
    "sync": (errno.EIO, errno.ENOSPC), "allocate": (errno.ENOSPC, errno.EIO),
    "resize": (errno.ENOSPC, errno.EIO), "erase": (errno.EIO,), "punch": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "remove": (errno.EIO, errno.EROFS), "make_folder": (errno.ENOSPC, errno.EIO),
    "sync_folder": (errno.EIO,),
}  # fmt: skip


@attrs.frozen
class Failure:
    """A failing call: kind, errno, how many calls pass before, and how many `times` it fails (None: from then on)."""

    call: str
    number: int
    after: int
    times: int | None

    def __str__(self) -> str:
        how = "once" if self.times else "from then on"
        return f"{errno.errorcode[self.number]} at {self.call} number {self.after + 1}, {how}"


@attrs.frozen
class FailureOutcome:
    """The result of one failure. `problem` is "" if there is none; `states` is the number of crashed disks opened."""

    failure: Failure
    states: int
    problem: str


def explore_failures(
    plot: Plot, count: int, *, kinds: Sequence[str] = tuple(ERRNOS)
) -> Iterator[FailureOutcome]:
    """Run the story `count` times with one failure each, at random calls of these kinds; yields the outcomes."""
    stage = Stage(plot)
    chance = Random(f"{plot.seed} failures")
    calls = _count_calls(stage)
    made = [kind for kind in kinds if calls.get(kind)]
    for index in range(count):
        kind = made[index % len(made)]
        failure = Failure(
            kind,
            chance.choice(ERRNOS[kind]),
            chance.randrange(calls[kind]),
            chance.choice((1, None)),
        )
        yield _try(stage, failure, chance)


def _count_calls(stage: Stage) -> dict[str, int]:
    disk = SimulatedDisk(clock=ManualClock())
    _play(stage, disk, Story(stage.plot.seed, _clock_of(disk)))
    return dict(disk.plan.counts)


def _clock_of(disk: SimulatedDisk) -> ManualClock:
    assert isinstance(disk.clock, ManualClock)
    return disk.clock


def _play(stage: Stage, disk: SimulatedDisk, story: Story) -> None:
    story.begin(*stage.open(disk))
    for step in story.steps(stage.plot.steps):
        if step == "reopen":
            story.close()
            story.begin(*stage.open(disk))


def _try(stage: Stage, failure: Failure, chance: Random) -> FailureOutcome:
    """Run the story with one failure, and return its outcome."""
    disk = SimulatedDisk(clock=ManualClock(), seed=chance.getrandbits(32))
    disk.plan.fail(failure.call, failure.number, after=failure.after, times=failure.times)
    story = Story(stage.plot.seed, _clock_of(disk))
    problem = ""
    try:
        _play(stage, disk, story)
    except (PenstockError, OSError) as error:
        # An `OSError` is allowed while a store is opened or read, since it names the file.
        if not isinstance(error, PenstockError) and story.is_open and failure.call not in _READING:
            problem = f"an OSError was raised instead of a PenstockError: {error!r}"
    promised = story.promised()
    disk.plan.heal()
    memory = Memory(disk.plan.total, str(failure), disk.image(), promised)
    look = Look(stage, promised, chance.choice(tuple(Survival)), chance, has_failed=True)
    try:
        problem = problem or _fail_opening(stage, memory, chance) or look.at(memory.image)
    except RAISED as error:
        problem = f"{type(error).__name__}: {error}"
    return FailureOutcome(failure, look.states + 1, problem)


_READING = ("open", "pread", "map")


def _fail_opening(stage: Stage, memory: Memory, chance: Random) -> str:
    """Let a call of the recovery fail; the next opening must find the same messages. Return the problem."""
    clean = SimulatedDisk.after(memory.image, Survival.ALL, chance, clock=ManualClock())
    store, _ = stage.open(clean)
    wanted = bodies_of(store)
    disk = SimulatedDisk.after(memory.image, Survival.ALL, chance, clock=ManualClock())
    kind = chance.choice([kind for kind in ERRNOS if clean.plan.counts.get(kind)])
    after = chance.randrange(clean.plan.counts[kind])
    disk.plan.fail(kind, chance.choice(ERRNOS[kind]), after=after, times=1)
    try:
        stage.open(disk)
    except (PenstockError, OSError):
        disk.plan.heal()
        image = disk.image()
        disk = SimulatedDisk.after(
            image, chance.choice(tuple(Survival)), chance, clock=ManualClock()
        )
        store, _ = stage.open(disk)
        found = bodies_of(store)
        if found != wanted:
            return f"after {kind} failed in an opening, the store holds {len(found)}, not {len(wanted)}"
    return ""
