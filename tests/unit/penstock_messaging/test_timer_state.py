"""The timer files: what is saved is loaded, by Penstock and by a broker; whatever does not fit is not believed."""

import errno
import struct
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

from penstock.testing import ManualClock
from penstock.testing.faults import FaultyFiles
from penstock_messaging.timers import timer_state
from penstock_messaging.timers.timer_state import TimerFiles, TimerSizes, TimerState

SLOTS = 256
# Five units and a blank.
LOG_BYTES = 5 * 52 + 30


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_state, "SIZES", TimerSizes(SLOTS, LOG_BYTES))


def loaded(
    root: Path, topic: TimerTopic, clock: ManualClock | None = None
) -> tuple[TimerFiles, TimerState]:
    files = TimerFiles(context_of(root, clock=clock))
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


def test_a_store_that_never_had_timers_has_no_state_and_gets_no_files(tmp_path: Path) -> None:
    assert TimerFiles(context_of(tmp_path)).load(TimerTopic(), unit_of_message) is None
    assert [*tmp_path.iterdir()] == []


def test_what_is_saved_is_loaded_by_penstock_and_by_a_broker(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    before = contents_of(tmp_path)
    _, state = loaded(tmp_path, topic)
    assert (state.read_ms, state.queue_offset, state.problem) == (START + SECOND, 24, "")
    assert waiting(state) == expected(topic, START + SECOND)
    assert contents_of(tmp_path) == before, "what is right is not written again"
    view = of_broker(tmp_path, topic)
    assert view == BrokerView(view.seconds, 24, START + SECOND)
    assert view.waiting() == waiting(state)


def test_units_have_the_layout_of_a_broker(tmp_path: Path) -> None:
    topic, files = TimerTopic(), TimerFiles(context_of(tmp_path))
    files.load(topic, unit_of_message)
    first = topic.put(START + 3 * SECOND)
    files.add(first)
    files.add(topic.put(START + 3 * SECOND, kind=5, enqueue_ms=START + SECOND))
    files.save(START, 2)
    found = contents_of(tmp_path)
    log = found["timerlog/00000000000000000000"]
    assert len(log) == LOG_BYTES
    assert UNIT.unpack_from(log) == (52, -1, 1, START, 3000, first.log_offset, 300, -7, 0)
    assert UNIT.unpack_from(log, 52)[:5] == (52, 0, 5, START + SECOND, 2000)
    second = START // SECOND + 3
    slot = struct.unpack_from(">qqqii", found["timerwheel"], second % SLOTS * 32)
    assert slot == (second, 0, 52, 0, 0), "one waits, and one cancels"
    assert struct.unpack_from(">7q", found["config/timercheck"]) == (START, 104, 2, 2, 0, START, 1)
    assert len(found["config/timercheck"]) == 4096


def test_a_file_of_the_timer_log_ends_with_a_blank_where_no_unit_fits(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    log = contents_of(tmp_path)["timerlog/00000000000000000000"]
    assert struct.unpack_from(">iqi", log, 5 * 52) == (30, 0, -875286124)


def test_units_that_a_crash_has_left_after_the_offset_are_cut_off(tmp_path: Path) -> None:
    topic = saved(tmp_path, 4)
    check = (tmp_path / "config" / "timercheck").read_bytes()
    files, _ = loaded(tmp_path, topic)
    for number in range(7):
        files.add(topic.put(START + (1 + number) * SECOND))
    files.save(START + SECOND, 15)
    (tmp_path / "config" / "timercheck").write_bytes(check)
    files, state = loaded(tmp_path, topic)
    assert (state.queue_offset, state.problem) == (8, "")
    assert waiting(state) == [
        each for each in expected(topic, START + SECOND) if each[1] < topic.records[8].log_offset
    ]
    assert of_broker(tmp_path, topic).waiting() == waiting(state)
    for record in topic.records[8:]:
        files.add(unit_of_message(topic.at(record.log_offset)))
    files.save(START + SECOND, 15)
    assert waiting(loaded(tmp_path, topic)[1]) == expected(topic, START + SECOND)
    assert of_broker(tmp_path, topic).waiting() == expected(topic, START + SECOND)
    assert of_broker(tmp_path, topic).queue_offset == 15


def damage_nothing(root: Path) -> None:
    pass


def lose_wheel(root: Path) -> None:
    (root / "timerwheel").unlink()


def cut_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"abc")


def fill_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"\x01" * (SLOTS * 32))


def lose_log(root: Path) -> None:
    for path in (root / "timerlog").iterdir():
        path.unlink()


def lose_first_file(root: Path) -> None:
    min((root / "timerlog").iterdir()).unlink()


def lose_middle_file(root: Path) -> None:
    sorted((root / "timerlog").iterdir())[1].unlink()


def cut_a_file(root: Path) -> None:
    path = max((root / "timerlog").iterdir())
    path.write_bytes(path.read_bytes()[:100])


def add_a_file_far_away(root: Path) -> None:
    (root / "timerlog" / ("9" * 20)).write_bytes(bytes(LOG_BYTES))


def zero_a_unit(root: Path) -> None:
    overwrite(root, 60, bytes(52))


def garble_a_record(root: Path) -> None:
    overwrite(root, 52 * 3 + 28, b"\x00\x00\x00\x00\x00\x12\x34\x56")


def loop_a_chain(root: Path) -> None:
    for number in range(5):
        overwrite(root, 52 * number + 4, (52 * number).to_bytes(8, "big"))


def point_ahead(root: Path) -> None:
    overwrite(root, 4, (1 << 40).to_bytes(8, "big"))


def move_a_unit_far_ahead(root: Path) -> None:
    overwrite(root, 16, (START * 2).to_bytes(8, "big"))


def overwrite(root: Path, position: int, data: bytes) -> None:
    path = sorted((root / "timerlog").iterdir())[-2]
    raw = bytearray(path.read_bytes())
    raw[position : position + len(data)] = data
    path.write_bytes(raw)


DAMAGES = [
    damage_nothing, lose_wheel, cut_wheel, fill_wheel, lose_log, lose_first_file, lose_middle_file, cut_a_file,
    add_a_file_far_away, zero_a_unit, garble_a_record, loop_a_chain, point_ahead, move_a_unit_far_ahead,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_whatever_does_not_fit_is_read_from_the_topic_instead(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]  # of a list
    topic = saved(tmp_path)
    damage(tmp_path)
    read_only = TimerFiles(context_of(tmp_path, read_only=True))
    before = contents_of(tmp_path)
    shown = read_only.load(topic, unit_of_message)
    assert contents_of(tmp_path) == before
    files, state = loaded(tmp_path, topic)
    assert shown is not None
    assert waiting(shown) == waiting(state) == expected(topic, START + SECOND)
    harmless = (damage_nothing, lose_wheel, cut_wheel, fill_wheel)
    assert (state.problem == "") == (damage in harmless), state.problem
    view = of_broker(tmp_path, topic)
    assert view.waiting() == waiting(state)
    assert view.queue_offset == state.queue_offset == 24
    files.add(topic.put(START + 2 * SECOND))
    files.save(START + SECOND, 25)
    assert loaded(tmp_path, topic)[1].problem == ""
    assert of_broker(tmp_path, topic).waiting() == expected(topic, START + SECOND)


def test_a_unit_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    """A broker that was killed takes in the records since its last save again."""
    topic, files = TimerTopic(), TimerFiles(context_of(tmp_path))
    files.load(topic, unit_of_message)
    units = [topic.put(START + SECOND) for _ in range(4)]
    for unit in [*units, *units[2:]]:
        files.add(unit)
    files.save(START, 4)
    assert len(of_broker(tmp_path, topic).waiting()) == 6
    _, state = loaded(tmp_path, topic)
    assert waiting(state) == expected(topic, START)
    assert of_broker(tmp_path, topic).waiting() == waiting(state)


def test_what_is_left_of_a_second_at_a_close_is_all_that_waits_in_it(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    files, state = loaded(tmp_path, topic)
    units = [*state.units()]
    now = [unit for unit in units if unit.slot_ms == START + SECOND]
    files.leave(START + SECOND, 24, now[2:4])
    left = [each for each in units if each.slot_ms > START + SECOND or each in now[2:4]]
    _, state = loaded(tmp_path, topic)
    assert state.problem == ""
    assert sorted(waiting(state)) == sorted((each.slot_ms, each.log_offset) for each in left)
    view = of_broker(tmp_path, topic)
    assert view.waiting() == waiting(state)
    assert view.queue_offset == 24


def test_if_nothing_is_left_of_a_second_it_is_over(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    files, _ = loaded(tmp_path, topic)
    files.leave(START + SECOND, 24, [])
    _, state = loaded(tmp_path, topic)
    assert waiting(state) == expected(topic, START + 2 * SECOND)
    assert of_broker(tmp_path, topic).waiting() == waiting(state)


def test_records_that_retention_has_deleted_do_not_wait(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    topic.first = 7
    context = context_of(tmp_path)
    context.log_min_offset = lambda: topic.records[7].log_offset  # type: ignore[misc]  # a stand-in
    state = TimerFiles(context).load(topic, unit_of_message)
    assert state is not None
    assert state.problem == ""
    assert waiting(state) == expected(topic, START + SECOND)
    assert "timerlog/00000000000000000000" not in contents_of(tmp_path)
    assert of_broker(tmp_path, topic).waiting() == waiting(state)
    assert loaded(tmp_path, topic)[1].problem == ""


@pytest.mark.parametrize("read_ms", [-5, 1 << 62])
def test_a_time_that_no_clock_had_makes_all_messages_wait(tmp_path: Path, read_ms: int) -> None:
    topic = saved(tmp_path)
    path = tmp_path / "config" / "timercheck"
    path.write_bytes(
        struct.pack(">q", read_ms if read_ms < 1 << 63 else -1) + path.read_bytes()[8:]
    )
    _, state = loaded(tmp_path, topic)
    assert "which cannot be" in state.problem
    assert waiting(state) == expected(topic, 0)


def test_a_queue_that_has_lost_its_end_continues_there(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    del topic.records[20:]
    files, state = loaded(tmp_path, topic)
    assert state.queue_offset == 20
    assert "it ends at 20" in state.problem
    assert waiting(state) == expected(topic, START + SECOND)
    files.add(topic.put(START + 2 * SECOND, size=301))
    files.save(START + SECOND, 21)
    assert waiting(loaded(tmp_path, topic)[1]) == expected(topic, START + SECOND)
    assert of_broker(tmp_path, topic).waiting() == expected(topic, START + SECOND)


def test_a_timercheck_that_is_too_short_is_named(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    (tmp_path / "config" / "timercheck").write_bytes(b"short")
    _, state = loaded(tmp_path, topic)
    assert "has 5 bytes" in state.problem
    assert (state.read_ms, state.queue_offset, waiting(state)) == (0, 0, [])


def test_a_second_that_is_long_over_does_not_take_the_slot_of_one_to_come(tmp_path: Path) -> None:
    topic = saved(tmp_path)
    files, state = loaded(tmp_path, topic)
    due = state.read_ms + 2 * SECOND
    files.add(topic.put(due - SLOTS * SECOND))
    files.save(state.read_ms, 25)
    assert of_broker(tmp_path, topic).waiting() == waiting(state)


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
