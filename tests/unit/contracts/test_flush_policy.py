"""A flush policy: what it must write, and what it gets for nothing."""

from pathlib import Path

import pytest

from penstock.contracts.base import NoOptions
from penstock.contracts.flush_policy import FlushPolicy
from penstock.testing import make_context


class Counted:
    """A flusher in memory that counts."""

    flushed_offset = wrote_offset = committed_offset = 0
    count = 0

    def flush(self) -> int:
        self.count += 1
        return self.flushed_offset


class Least(FlushPolicy):
    name = "least"

    def after_append(self, end_offset: int) -> None:
        pass


def test_a_policy_hears_appends_and_makes_nobody_wait_unless_it_says_so() -> None:
    assert (Least.appender_waits, Least.hears_appends, Least.group_commit) == (False, True, False)
    assert Least.timeout_ms == 5000


def test_who_waits_for_durability_gets_a_flush_at_once(tmp_path: Path) -> None:
    flusher = Counted()
    policy = Least(NoOptions(), make_context(tmp_path), flusher)
    policy.start()
    policy.request()
    policy.close()
    assert flusher.count == 1


def test_a_policy_must_say_what_it_does_after_an_append(tmp_path: Path) -> None:
    class Silent(FlushPolicy):
        name = "silent"

    with pytest.raises(TypeError, match="after_append"):
        Silent(NoOptions(), make_context(tmp_path), Counted())  # type: ignore[abstract] # as above
