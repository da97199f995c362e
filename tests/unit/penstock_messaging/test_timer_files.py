"""The timer files: what is saved is loaded, by Penstock and by a broker; whatever does not fit is not believed.

`tests/crash/test_timer_files.py` loses power at each call, and `tests/property/test_timer_files.py` changes bytes of a broker's files.
"""

import errno
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.timer_topic import (
    SECOND,
    START,
    UNIT,
    BrokerTimers,
    BrokerView,
    TimerTopic,
    contents_of,
    context_of,
    unit_of_message,
)

from penstock.files import Files
from penstock.testing.faults import FaultyFiles
from penstock_messaging.timers import timer_state
from penstock_messaging.timers.timer_check import TimerCheck, path_of, read_check, write_check
from penstock_messaging.timers.timer_state import TimerFiles, TimerSizes, TimerState

SLOTS = 256
# Five units and a blank.
LOG_BYTES = 5 * 52 + 30
FIRST = "timerlog/00000000000000000000"
NOW = START + SECOND


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_state, "SIZES", TimerSizes(SLOTS, LOG_BYTES))


def loaded(root: Path, topic: TimerTopic) -> tuple[TimerFiles, TimerState]:
    files = TimerFiles(context_of(root))
    state = files.load(topic, unit_of_message)
    assert state is not None
    return files, state


def waiting(state: TimerState) -> list[tuple[int, int]]:
    return [(unit.slot_ms, unit.log_offset) for unit in state.units()]


def of_broker(root: Path, topic: TimerTopic) -> BrokerView:
    return BrokerTimers(contents_of(root), topic, SLOTS).recovered()


def saved(root: Path, count: int = 12) -> TimerTopic:
    """Save `count` timers in each of two saves, with a second that is over in between."""
    topic, files = TimerTopic(), TimerFiles(context_of(root))
    assert files.load(topic, unit_of_message) is None
    for part in range(2):
        for number in range(count):
            files.add(topic.put(START + (part + number % 4) * SECOND))
        files.save(START + part * SECOND, len(topic.records))
    return topic


def expected(topic: TimerTopic, read_ms: int) -> list[tuple[int, int]]:
    found = [(each.slot_ms, each.log_offset) for each in topic.records[topic.first :]]
    return sorted(each for each in found if each[0] >= read_ms)


def assert_right(root: Path, topic: TimerTopic, read_ms: int = NOW) -> None:
    """Assert that Penstock and a broker find what waits, and nothing wrong."""
    _, state = loaded(root, topic)
    assert state.problem == ""
    assert waiting(state) == expected(topic, read_ms)
    assert of_broker(root, topic).waiting() == waiting(state)


def test_the_files_have_the_layout_of_a_broker(tmp_path: Path) -> None:
    topic, files = TimerTopic(), TimerFiles(context_of(tmp_path))
    files.load(topic, unit_of_message)
    first = topic.put(START + 3 * SECOND)
    files.add(first)
    files.add(topic.put(START + 3 * SECOND, kind=5, enqueue_ms=NOW))
    files.save(START, 2)
    found = contents_of(tmp_path)
    assert len(found[FIRST]) == LOG_BYTES
    unit = (52, -1, 1, START, 3000, first.log_offset, 300, -7, 0)
    assert UNIT.unpack_from(found[FIRST]) == unit
    assert UNIT.unpack_from(found[FIRST], 52)[:5] == (52, 0, 5, NOW, 2000)
    second = START // SECOND + 3
    slot = struct.unpack_from(">qqqii", found["timerwheel"], second % SLOTS * 32)
    assert slot == (second, 0, 52, 0, 0), "one waits, and one cancels"
    assert len(found["timerwheel"]) == SLOTS * 32
    assert struct.unpack_from(">7q", found["config/timercheck"]) == (START, 104, 2, 2, 0, START, 1)
    assert len(found["config/timercheck"]) == 4096
    # A file ends with a blank where no unit fits.
    for _ in range(4):
        files.add(topic.put(START + 3 * SECOND))
    files.save(START, 6)
    blank = struct.unpack_from(">iqi", contents_of(tmp_path)[FIRST], 5 * 52)
    assert blank == (30, 0, -875286124)


def test_of_two_offsets_in_timercheck_the_lower_counts_and_other_bytes_stay(tmp_path: Path) -> None:
    files, path = Files(), path_of(tmp_path)
    assert read_check(files, tmp_path) is None
    path.parent.mkdir()
    path.write_bytes(struct.pack(">7q", 1, 2, 9, 5, 4, 3, (1 << 63) - 1) + b"more" * 1010)
    found = read_check(files, tmp_path)
    assert found is not None
    assert (found.queue_offset, found.version[0]) == (5, 4)
    assert write_check(files, tmp_path, found, 6).version == (4, 6, 1)
    assert path.read_bytes()[56:] == b"more" * 1010
    # A file of an older broker has no version.
    path.write_bytes(struct.pack(">4q", 1, 2, 3, 4))
    assert read_check(files, tmp_path) == TimerCheck(1, 2, 3)
    path.write_bytes(b"1234")
    with pytest.raises(ValueError, match="has 4 bytes"):
        read_check(files, tmp_path)


def log_files(root: Path) -> list[Path]:
    return sorted((root / "timerlog").iterdir())


def overwritten(position: int, data: bytes) -> Callable[[Path], object]:
    """Return what changes bytes of the last file of the log but one."""

    def overwrite(root: Path) -> None:
        path = log_files(root)[-2]
        raw = bytearray(path.read_bytes())
        raw[position : position + len(data)] = data
        path.write_bytes(raw)

    return overwrite


def loop_a_chain(root: Path) -> None:
    for number in range(5):
        overwritten(52 * number + 4, (52 * number).to_bytes(8, "big"))(root)


HARMLESS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda root: None,
    "no wheel": lambda root: (root / "timerwheel").unlink(),
    "a short wheel": lambda root: (root / "timerwheel").write_bytes(b"abc"),
    "a wheel of ones": lambda root: (root / "timerwheel").write_bytes(b"\x01" * (SLOTS * 32)),
}
DAMAGES: dict[str, Callable[[Path], object]] = {
    **HARMLESS,
    "no log": lambda root: shutil.rmtree(root / "timerlog"),
    "no first file": lambda root: log_files(root)[0].unlink(),
    "no middle file": lambda root: log_files(root)[1].unlink(),
    "a short file": lambda root: log_files(root)[-1].write_bytes(bytes(100)),
    "a file far away": lambda root: (root / "timerlog" / ("9" * 20)).write_bytes(bytes(LOG_BYTES)),
    "zeros": overwritten(60, bytes(52)),
    "another record": overwritten(52 * 3 + 28, b"\x00\x00\x00\x00\x00\x12\x34\x56"),
    "a loop": loop_a_chain,
    "a chain that leads ahead": overwritten(4, (1 << 40).to_bytes(8, "big")),
    "a time far ahead": overwritten(16, (START * 2).to_bytes(8, "big")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_does_not_fit_is_read_from_the_topic_instead(tmp_path: Path, damage: str) -> None:
    topic = saved(tmp_path)
    DAMAGES[damage](tmp_path)
    before = contents_of(tmp_path)
    shown = TimerFiles(context_of(tmp_path, read_only=True)).load(topic, unit_of_message)
    assert contents_of(tmp_path) == before
    files, state = loaded(tmp_path, topic)
    assert shown is not None
    assert waiting(shown) == waiting(state) == expected(topic, NOW)
    assert (state.problem == "") == (damage in HARMLESS), state.problem
    assert damage != "nothing" or contents_of(tmp_path) == before, "it is written again"
    view = of_broker(tmp_path, topic)
    assert view.waiting() == waiting(state)
    assert view.queue_offset == state.queue_offset == 24
    files.add(topic.put(START + 2 * SECOND))
    files.save(NOW, 25)
    assert_right(tmp_path, topic)


@pytest.mark.parametrize("when", ["opening", "saving"])
def test_records_that_retention_has_deleted_do_not_wait(when: str, tmp_path: Path) -> None:
    """While a store was open, the files only grew."""
    topic = saved(tmp_path)
    topic.first = 7
    context, least = context_of(tmp_path), topic.records[7].log_offset
    low = least if when == "opening" else 0
    context.log_min_offset = lambda: low  # type: ignore[misc]  # a stand-in
    files = TimerFiles(context)
    assert files.load(topic, unit_of_message) is not None
    if when == "saving":
        assert FIRST in contents_of(tmp_path)
        low = least
        files.save(NOW, 24)
    assert FIRST not in contents_of(tmp_path)
    assert_right(tmp_path, topic)


@pytest.mark.parametrize("read_ms", [-5, 1 << 62])
def test_a_time_that_no_clock_had_makes_all_messages_wait(tmp_path: Path, read_ms: int) -> None:
    topic = saved(tmp_path)
    path = tmp_path / "config" / "timercheck"
    path.write_bytes(struct.pack(">q", read_ms) + path.read_bytes()[8:])
    _, state = loaded(tmp_path, topic)
    assert "which cannot be" in state.problem
    assert waiting(state) == expected(topic, 0)
    path.write_bytes(b"short")
    _, state = loaded(tmp_path, topic)
    assert "has 5 bytes" in state.problem
    assert (state.read_ms, state.queue_offset, waiting(state)) == (0, 0, [])


def test_a_queue_that_has_lost_its_end_continues_there(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    del topic.records[20:]
    files, state = loaded(tmp_path, topic)
    assert state.queue_offset == 20
    assert "it ends at 20" in state.problem
    assert waiting(state) == expected(topic, NOW)
    files.add(topic.put(START + 2 * SECOND, size=301))
    files.save(NOW, 21)
    assert_right(tmp_path, topic)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["pwrite", "sync", "sync_folder", "rename", "create", "resize"])
def test_a_save_that_failed_is_tried_again_and_writes_the_same(tmp_path: Path, call: str) -> None:
    for after in range(8):
        root = tmp_path / str(after)
        root.mkdir()
        topic = saved(root)
        disk = FaultyFiles()
        files = TimerFiles(context_of(root, disk))
        assert files.load(topic, unit_of_message) is not None
        failures = 0
        for part in range(2):
            for number in range(9):
                files.add(topic.put(START + (2 + number % 4) * SECOND))
            disk.plan.fail(call, errno.ENOSPC, after=after + part, times=1)
            while True:
                try:
                    files.save(START + SECOND, len(topic.records))
                    break
                except OSError:
                    failures += 1
            disk.plan.heal()
        assert failures <= 2
        _, state = loaded(root, topic)
        assert state.problem == ""
        assert waiting(state) == expected(topic, START + SECOND)
        assert of_broker(root, topic).waiting() == waiting(state)
