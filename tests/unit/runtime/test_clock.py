"""Time passed in, and a wall clock that is not believed at once when it jumps."""

from penstock.runtime.clock import BELIEVED_AFTER_MS, JUMP_MS, Clock, SteadyTime
from penstock.testing import ManualClock


class TwoClocks(ManualClock):
    """A wall clock that may be set apart from the monotonic one."""

    ahead_ms = 0

    def time_ms(self) -> int:
        return self.now_ms + self.ahead_ms


def test_what_never_goes_back_does_not() -> None:
    clock = Clock()
    for read in (clock.monotonic_ms, clock.monotonic_ns, clock.thread_ns):
        assert read() <= read()
    assert clock.time_ms() > 1_700_000_000_000


def test_drift_is_followed() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    clock.ahead_ms = JUMP_MS
    clock.now_ms += 5
    assert steady.time_ms() == clock.time_ms()
    assert not steady.is_doubted


def test_a_jump_is_believed_when_the_clock_has_kept_to_it_for_an_hour() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    clock.ahead_ms = 10 * JUMP_MS
    assert steady.time_ms() == clock.now_ms
    assert steady.is_doubted
    clock.now_ms += BELIEVED_AFTER_MS - 1
    assert steady.time_ms() == clock.now_ms
    clock.now_ms += 1
    assert steady.time_ms() == clock.time_ms()
    assert not steady.is_doubted


def test_a_clock_set_wrong_and_right_again_is_never_believed() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    for ahead in (-5 * JUMP_MS, 0, 5 * JUMP_MS, 0):
        clock.ahead_ms = ahead
        clock.now_ms += BELIEVED_AFTER_MS // 2
        assert steady.time_ms() == clock.now_ms


def test_a_second_jump_begins_the_hour_anew() -> None:
    clock = TwoClocks()
    steady = SteadyTime(clock)
    for factor in (5, 9):
        clock.ahead_ms = factor * JUMP_MS
        steady.time_ms()
        clock.now_ms += BELIEVED_AFTER_MS - 1
        assert steady.time_ms() == clock.now_ms
