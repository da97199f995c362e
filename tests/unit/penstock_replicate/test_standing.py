"""What a follower knows, and who is woken when it changes."""

import threading

import pytest

from penstock_replicate.following.standing import FollowState, Standing


class Time:
    """A clock that a test sets."""

    now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time_ms() -> Time:
    return Time()


@pytest.fixture
def standing(time_ms: Time) -> Standing:
    return Standing(time_ms, 7, "a:1")


def test_lag_is_counted_from_when_nothing_was_missing(standing: Standing, time_ms: Time) -> None:
    standing.turn(FollowState.CATCHING_UP)
    standing.heard(500)
    time_ms.now = 3000
    found = standing.status()
    assert (found.lag_bytes, found.lag_ms, found.state) == (500, 2000, "catching up")
    standing.end_offset = 500
    standing.settle(is_level=True)
    found = standing.status()
    assert (found.lag_bytes, found.lag_ms, found.state) == (0, 0, "following")
    standing.heard(600)
    time_ms.now = 3500
    assert standing.status().lag_ms == 500
    standing.heard(100)
    assert standing.status().master_offset == 600


def test_a_failure_is_kept(standing: Standing) -> None:
    error = ValueError("broken")
    standing.turn(FollowState.FAILED, error)
    assert standing.failure is error
    assert standing.status().last_error == "broken"


def test_a_waiting_thread_is_woken(standing: Standing) -> None:
    found: list[bool] = []
    waiting = threading.Thread(
        target=lambda: found.append(standing.wait(lambda: standing.end_offset > 5, 10))
    )
    waiting.start()
    standing.end_offset = 6
    standing.settle(is_level=False)
    waiting.join(5)
    assert found == [True]
    assert not standing.wait(lambda: False, 0.01)


def test_a_promoted_follower_is_a_master(standing: Standing) -> None:
    standing.turn(FollowState.PROMOTED)
    assert standing.status().role == "master"
