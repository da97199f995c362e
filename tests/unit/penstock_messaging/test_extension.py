from pathlib import Path

import pytest

import penstock
from penstock import MessageError
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.extension import MessagingExtension, MessagingOptions


@pytest.mark.parametrize("value", [0, -1])
def test_the_progress_is_saved_after_some_time(value: int) -> None:
    with pytest.raises(ValueError, match="delay_save_ms"):
        MessagingOptions(delay_save_ms=value)
    assert MessagingOptions().delay_save_ms == 1000


def test_the_option_sets_when_the_progress_is_saved(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    settings = {"delay_save_ms": 1}
    with open_store(
        tmp_path, clock=clock, spawn=workers, extensions={"messaging": settings}
    ) as store:
        store.put("t", b"", delay_level=1)
        clock.now_ms += 1000
        workers.run("penstock-deliver")
        clock.now_ms += 1
        workers.run("penstock-deliver")
        assert (tmp_path / "config" / "delayOffset.json").exists()


def test_a_store_without_the_extension_refuses_a_delay(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path, environ={}, extensions=[]) as store,
        pytest.raises(MessageError, match="add messaging"),
    ):
        store.put("t", b"", delay_level=1)


def test_a_reader_delivers_nothing(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    with open_store(tmp_path, clock=clock, spawn=ManualWorkers()) as store:
        store.put("t", b"", delay_level=1)
    clock.now_ms += 1000
    with open_store(tmp_path, clock=clock, spawn=workers, read_only=True) as reader:
        assert "penstock-deliver" not in workers.by_name
        extension = reader.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        assert extension.stats()["delays"]["waiting"] == 0
        assert list(reader.scan("t")) == []
