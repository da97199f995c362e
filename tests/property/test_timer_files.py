"""Timer files of real brokers, whole and with changed bytes: nothing that waits is lost, and nothing makes a load fail."""

import json
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes import examples
from tests.timer_topic import (
    UNIT,
    BrokerTimers,
    Record,
    TimerTopic,
    contents_of,
    context_of,
    unit_of_message,
)

from penstock.testing import ManualClock
from penstock_messaging.timers.timer_state import TimerFiles, TimerState
from penstock_messaging.timers.wheel_file import SLOTS

GOLDEN = Path(__file__).parents[1] / "golden"
WINDOW_MS = 172_800_000
# Where in a unit its times are, of which nothing else in these files tells.
TIMES = {*range(16, 28)}


class Golden:
    """One of the archives, unpacked.

    Attributes:
        waits: the log offsets of what is not delivered, what cancels others included.
    """

    def __init__(self, ending: str, home: Path) -> None:
        self.root = home / ending
        with tarfile.open(GOLDEN / f"timers-5.3.3-{ending}.tar.gz") as archive:
            archive.extractall(self.root, filter="data")
        facts = json.loads((GOLDEN / f"timers-5.3.3-{ending}.json").read_text())
        self.now_ms = facts["now_ms"]
        self.topic = TimerTopic(
            [
                Record(log_offset, size, self.slot_ms(out_ms), 5 if cancels else 1, self.now_ms)
                for log_offset, size, out_ms, cancels, _ in facts["records"]
            ]
        )
        self.waits = {log_offset for log_offset, *_, is_done in facts["records"] if not is_done}

    def slot_ms(self, out_ms: int) -> int:
        """Return when a record is looked at that is taken in now."""
        now_ms = self.now_ms // 1000 * 1000
        return out_ms if out_ms - now_ms < WINDOW_MS else now_ms + WINDOW_MS // 2

    def load(self, root: Path, *, read_only: bool = False) -> TimerState:
        context = context_of(root, clock=ManualClock(self.now_ms), read_only=read_only)
        state = TimerFiles(context).load(self.topic, unit_of_message)
        assert state is not None
        return state

    def broker(self, root: Path) -> BrokerTimers:
        return BrokerTimers(contents_of(root), self.topic, SLOTS, self.now_ms)

    def not_lost(self, state: TimerState) -> set[int]:
        """Return what waits, and what is taken in next."""
        again = {each.log_offset for each in self.topic.records[state.queue_offset :]}
        return again | {unit.log_offset for unit in state.units()}


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture(scope="module", params=["clean", "killed"])
def golden(request: pytest.FixtureRequest, home: Path) -> Golden:
    return Golden(request.param, home)


@pytest.mark.slow
def test_files_of_a_broker_say_what_waits(golden: Golden, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(golden.root, root)
    view = golden.broker(root).recovered()
    state = golden.load(root)
    assert state.problem == ""
    assert golden.waits <= golden.not_lost(state)
    ours = [(unit.slot_ms, unit.log_offset) for unit in state.units() if unit.kind & 4 == 0]
    if golden.root.name == "clean":
        assert {unit.log_offset for unit in state.units()} == golden.waits
        assert view.waiting() == sorted(ours)
        assert contents_of(root) == contents_of(golden.root), "what is right is not written again"
    else:
        assert {unit.log_offset for unit in state.units()} <= golden.waits
    assert golden.broker(root).recovered().waiting() == ours


def changed(golden: Golden, root: Path, changes: list[tuple[int, int, int]]) -> bool:
    """Write copies of the files with changed bytes; return whether only times are changed."""
    is_about_time = False
    names = sorted(
        path for path in golden.root.rglob("*") if path.is_file() and path.name != "timerwheel"
    )
    contents = {path: bytearray(path.read_bytes()) for path in names}
    for number, position, value in changes:
        path = names[number % len(names)]
        data = contents[path]
        end = 56 if path.name == "timercheck" else len(data)
        data[position % end] ^= value
        is_about_time |= path.name == "timercheck" or position % end % UNIT.size in TIMES
    for path, data in contents.items():
        target = root / path.relative_to(golden.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return is_about_time


CHANGES = st.lists(
    st.tuples(st.integers(0, 63), st.integers(0, 4095), st.integers(1, 255)), min_size=1, max_size=4
)


@pytest.mark.slow
@given(changes=CHANGES)
@settings(max_examples=examples(12), deadline=None)
def test_changed_bytes_lose_nothing(golden: Golden, changes: list[tuple[int, int, int]]) -> None:
    """Of times there is no second record in these files: a message with a changed one may come early to be looked at, or never."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        is_about_time = changed(golden, root, changes)
        before = contents_of(root)
        shown = golden.load(root, read_only=True)
        assert contents_of(root) == before
        state = golden.load(root)
        assert [*shown.units()] == [*state.units()]
        if not is_about_time:
            assert golden.waits <= golden.not_lost(state)
        # The files are right now, for both.
        again = golden.load(root)
        assert "timer log" not in again.problem
        assert {*again.units()} == {*state.units()}
        view = golden.broker(root).recovered()
        ours = {unit.log_offset for unit in state.units() if unit.kind & 4 == 0}
        assert {at for _, at in view.waiting()} <= ours


@pytest.mark.slow
def test_a_wheel_of_any_bytes_is_put_right(golden: Golden, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(golden.root, root)
    path = root / "timerwheel"
    raw = bytearray(path.read_bytes())
    second = golden.now_ms // 1000 + 5000
    for number in range(0, 4000, 3):
        slot = struct.pack(">qqqii", second + number, 52 * number, 52 * (number % 7), 1, 0)
        at = (second + number) % SLOTS * len(slot)
        raw[at : at + len(slot)] = slot
    path.write_bytes(raw)
    state = golden.load(root)
    assert state.problem == ""
    ours = [(unit.slot_ms, unit.log_offset) for unit in state.units() if unit.kind & 4 == 0]
    assert golden.broker(root).recovered().waiting() == ours
