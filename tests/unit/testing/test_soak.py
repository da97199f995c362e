"""Exploring until told to stop: seeds spread over all combinations, and a case played again by a command."""

import pytest

from penstock.matrix.combos import Combo
from penstock.testing import soak
from penstock.testing.crash import CrashOutcome


def test_a_combination_takes_little_memory_and_locks_none() -> None:
    settings = soak.settings_of(Combo("transient-pool", "preallocate", "async", "direct"))
    assert settings["write.transient-pool.lock_memory"] is False
    assert settings["alloc.preallocate.lock_memory"] is False
    plain = Combo("mmap", "on-demand", "sync", "follow")
    assert soak.settings_of(plain) == plain.settings()


def test_one_case_is_played_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--seed", "2", "--steps", "3", "--point", "5", "--survival", "none"]) == 0
    assert "no problem" in capsys.readouterr().out


def test_what_goes_wrong_is_printed_and_is_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(plot: object, case: object) -> CrashOutcome:
        return CrashOutcome(case, "sync 0", 1, "it is gone")  # type: ignore[arg-type] # as given

    monkeypatch.setattr(soak, "replay", wrong)
    assert soak.main(["--point", "5"]) == 1
    assert "before sync 0: it is gone" in capsys.readouterr().out
