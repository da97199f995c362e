"""The timer files on a disk that loses power, and in a process that is killed, before each call of a story of saves.

Whatever survives, Penstock finds what waited at one of the last two saves, and a broker that comes instead of it loses nothing.
After Penstock has loaded the files, a broker finds in them exactly what Penstock did; also if that load was ended by a crash.
"""

from pathlib import Path
from random import Random

import attrs
import numpy as np
import pytest
from tests.lanes import NIGHT, cases
from tests.timer_topic import (
    SECOND,
    START,
    BrokerTimers,
    Record,
    TimerTopic,
    context_of,
    unit_of,
    unit_of_message,
)

from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.platter import Image, Survival
from penstock_messaging.timers import timer_state
from penstock_messaging.timers.timer_log import UNIT
from penstock_messaging.timers.timer_state import TimerFiles, TimerSizes, TimerState

ROOT = Path("/store")
SLOTS, LOG_BYTES = 128, 7 * 52 + 30
STEPS = 25


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_state, "SIZES", TimerSizes(SLOTS, LOG_BYTES))


@attrs.frozen
class Saved:
    """What a save said.

    Attributes:
        read_ms: as saved.
        count: how many records were taken in.
        left: which records of the second `read_ms` were left; None for all.
    """

    read_ms: int
    count: int
    left: frozenset[int] | None = None

    def waiting(self, topic: TimerTopic) -> set[int]:
        """Return the log offsets of what waits."""
        return {
            each.log_offset for each in topic.records[: self.count]
            if each.slot_ms > self.read_ms
            or (each.slot_ms == self.read_ms and (self.left is None or each.log_offset in self.left))
        }  # fmt: skip


@attrs.frozen
class Moment:
    """The disk before a call; `before` was saved, and `after` or `whole` may have been: all of a second of which a part is left."""

    call: str
    image: Image
    before: Saved
    after: Saved
    whole: Saved
    records: int


class Tale:
    """Saves what a random engine would, and keeps an image of the disk before each call that changes it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.disk = SimulatedDisk(clock=ManualClock(START), seed=seed, write_back=0.05)
        self.disk.make_folder_durably(ROOT)
        self.topic = TimerTopic()
        self.before = self.after = self.whole = Saved(0, 0)
        self.moments: list[Moment] = []
        self.disk.plan.watch = self._remember
        self.files = opened(self.disk, self.topic)[0]

    def _remember(self, call: str, path: Path) -> None:
        self.moments.append(Moment(
            f"{call} {path.name}", self.disk.image(), self.before, self.after, self.whole, len(self.topic.records),
        ))  # fmt: skip

    def run(self) -> list[Moment]:
        for _ in range(STEPS):
            self._step()
        return self.moments

    def _step(self) -> None:
        read_ms = max(self.before.read_ms, START) + self.chance.choice((0, 1, 1, 2)) * SECOND
        for _ in range(self.chance.choice((0, 1, 3, 9))):
            slot_ms = read_ms + self.chance.randint(-2, 8) * SECOND
            self.files.add(self.topic.put(slot_ms, enqueue_ms=read_ms))
        count = len(self.topic.records)
        self.after = Saved(read_ms, count, self._still_left(read_ms))
        if self.chance.random() < 0.8:
            self.files.save(read_ms, count)
        else:
            self._leave()
            self.files, _ = opened(self.disk, self.topic)
        self.before = self.after

    def _still_left(self, read_ms: int) -> frozenset[int] | None:
        """Return what is left of a second of which a part was left before."""
        if self.before.left is None or read_ms != self.before.read_ms:
            return None
        added = self.topic.records[self.before.count :]
        return self.before.left | {each.log_offset for each in added if each.slot_ms == read_ms}

    def _leave(self) -> None:
        saved = self.after
        waits = saved.waiting(self.topic)
        now = [
            each for each in self.topic.records
            if each.slot_ms == saved.read_ms and each.log_offset in waits
        ]  # fmt: skip
        left = self.chance.sample(now, self.chance.randint(0, len(now)))
        self.after = attrs.evolve(saved, left=frozenset(each.log_offset for each in left))
        self.whole = saved
        self.files.leave(saved.read_ms, saved.count, [unit_of(each) for each in left])
        if not left:
            self.after = Saved(saved.read_ms + SECOND, saved.count)


def opened(disk: SimulatedDisk, topic: TimerTopic) -> tuple[TimerFiles, TimerState | None]:
    files = TimerFiles(context_of(ROOT, disk))
    return files, files.load(topic, unit_of_message)


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    found = {}
    for name in ("timerwheel", "config/timercheck"):
        if disk.exists(ROOT / name):
            found[name] = disk.read_whole(ROOT / name)
    if disk.is_folder(ROOT / "timerlog"):
        for base, _ in disk.numbered(str(ROOT / "timerlog")):
            name = f"timerlog/{base:020}"
            found[name] = disk.read_whole(ROOT / name)
    return found


def found_save(
    state: TimerState, moment: Moment, topic: TimerTopic, found: set[int], about: str
) -> Saved:
    """Return which save was found; a close may have been ended while it said of single messages that they are delivered."""
    choices = [moment.before, moment.after, moment.whole]
    over = [Saved(each.read_ms + SECOND, each.count) for each in choices if each.left is not None]
    for each in [*over, *choices]:
        if (each.read_ms, each.count) == (state.read_ms, state.queue_offset):
            if each.waiting(topic) == found:
                return each
            if each is moment.whole and moment.after.waiting(topic) <= found <= each.waiting(topic):
                return attrs.evolve(each, left=frozenset(found))
    raise AssertionError(about)


def check_loaded(disk: SimulatedDisk, topic: TimerTopic, moment: Moment, about: str) -> Saved:
    """Load the files, and check them with a broker's eyes, then save more; returns which save was found."""
    files, state = opened(disk, topic)
    if state is None:
        state = TimerState(0, 0, np.empty(0, UNIT.dtype))
    assert state.problem == "", about
    found = {unit.log_offset for unit in state.units()}
    saved = found_save(state, moment, topic, found, about)
    view = BrokerTimers(contents(disk), topic, SLOTS).recovered()
    assert view.queue_offset == saved.count, about
    # What is left of a second may be in another order.
    seen = sorted((unit.slot_ms, unit.log_offset) for unit in state.units())
    assert sorted(view.waiting()) == seen, about
    read_ms = max(saved.read_ms, START)
    for record in topic.records[saved.count :]:
        files.add(unit_of(record))
    files.save(read_ms, len(topic.records))
    more = Saved(read_ms, len(topic.records), saved.left)
    _, state = opened(disk, topic)
    assert state is not None
    assert state.problem == "", about
    expected = saved.waiting(topic) | {
        each.log_offset for each in topic.records[saved.count :] if each.slot_ms >= read_ms
    }
    assert {unit.log_offset for unit in state.units()} == expected, about
    return more


def check_broker(disk: SimulatedDisk, topic: TimerTopic, moment: Moment, about: str) -> None:
    """A broker that takes over after the crash delivers everything that waits, or reads it from the topic again."""
    view = BrokerTimers(contents(disk), topic, SLOTS).recovered()
    again = {each.log_offset for each in topic.records[view.queue_offset :]}
    found = {log_offset for _, log_offset in view.waiting()}
    surely = moment.before.waiting(topic) & moment.after.waiting(topic)
    assert surely <= found | again, about
    assert view.queue_offset <= moment.after.count, about


def story(seed: int) -> tuple[TimerTopic, list[Moment]]:
    tale = Tale(seed)
    return tale.topic, tale.run()


def at_moment(topic: TimerTopic, moment: Moment) -> TimerTopic:
    return TimerTopic(list[Record](topic.records[: moment.records]))


@pytest.mark.parametrize("seed", range(4))
def test_no_crash_loses_what_waits_or_brings_back_what_does_not(seed: int) -> None:
    topic, moments = story(seed)
    chance = Random(seed)
    for moment in cases(moments, f"timer files {seed}"):
        for survival in Survival if NIGHT else [chance.choice([*Survival])]:
            about = f"seed {seed}, {survival.value} before {moment.call}"
            clock = ManualClock(START)
            then = at_moment(topic, moment)
            disk = SimulatedDisk.after(moment.image, survival, Random(seed), clock=clock)
            check_broker(disk, then, moment, about)
            check_loaded(disk, then, moment, about)


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_while_the_files_are_put_right_changes_nothing(seed: int) -> None:
    topic, moments = story(seed)
    for moment in cases(moments[::5], f"timer files twice {seed}"):
        then = at_moment(topic, moment)
        disk = SimulatedDisk.after(
            moment.image, Survival.PAGES, Random(seed), clock=ManualClock(START)
        )
        images: list[tuple[str, Image]] = []
        disk.plan.watch = lambda call, path, disk=disk, images=images: images.append(
            (f"{call} {path.name}", disk.image())
        )
        opened(disk, then)
        for number, (call, image) in enumerate(images):
            survival = [*Survival][number % len(Survival)]
            again = SimulatedDisk.after(image, survival, Random(number), clock=ManualClock(START))
            about = f"seed {seed}, {moment.call}, then {survival.value} before {call}"
            check_broker(again, then, moment, about)
            check_loaded(again, then, moment, about)
