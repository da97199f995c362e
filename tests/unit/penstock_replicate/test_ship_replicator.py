"""The replicator `ship` in an open store: its thread, its errors, and what it says."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.shipped import SMALL, StoreLog, bodies

import penstock
from penstock.contracts import Context, CopyOutcome
from penstock.contracts.geometry import Geometry
from penstock.errors import ConfigError
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers
from penstock.testing.faults import FaultyFiles
from penstock_replicate.ship.restoring import restore
from penstock_replicate.ship.ship_replicator import ShipOptions, ShipReplicator
from penstock_replicate.ship.uploading import StoppedError


class Shipping:
    """A replicator of a store, whose thread the test runs. Use `with`."""

    def __init__(self, root: Path, url: Path, **options: Any) -> None:
        self.files, self.clock, self.workers = FaultyFiles(), ManualClock(), ManualWorkers()
        self.store: Store = penstock.open(root, environ={}, clock=self.clock, spawn=ManualWorkers(), **{**SMALL, "flush": "async"})  # fmt: skip
        context = Context(root=root, files=self.files, clock=self.clock, geometry=Geometry(), spawn=self.workers)  # fmt: skip
        self.replicator = ShipReplicator(ShipOptions(url=str(url), **options), context, StoreLog(self.store))  # fmt: skip
        self.replicator.start()

    def step(self) -> float | None:
        return self.workers.run("penstock-ship")

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            self.store.put("t", b"x" * 300)
        self.store.flush()

    def __enter__(self) -> "Shipping":  # noqa: PYI034 - a test's own
        return self

    def __exit__(self, *_: object) -> None:
        self.replicator.close()
        self.replicator.close()
        self.store.close()


def test_a_round_each_interval(tmp_path: Path) -> None:
    with Shipping(tmp_path / "store", tmp_path / "archive", interval_ms=2000) as shipping:
        (before,) = shipping.replicator.copies()
        assert not before.in_sync
        shipping.put(3)
        assert shipping.step() == 2.0
        (state,) = shipping.replicator.copies()
        assert state.in_sync
        assert (state.lag_bytes, state.lag_ms, state.last_error) == (0, 0, None)
        assert (state.kind, state.name) == ("ship", str(tmp_path / "archive"))
        shipping.put(1)
        shipping.clock.now_ms += 1500
        (state,) = shipping.replicator.copies()
        assert state.lag_bytes > 0
        assert state.lag_ms == 1500
        shipping.step()
        assert shipping.replicator.stats()["shipped_offset"] == shipping.replicator.log.visible_offset  # fmt: skip
        assert "ship, in sync" in shipping.replicator.summary()[1].text


def test_an_archive_that_fails_is_tried_again_less_often(tmp_path: Path) -> None:
    with Shipping(tmp_path / "store", tmp_path / "archive", interval_ms=1000) as shipping:
        shipping.put()
        shipping.step()
        shipping.files.plan.fail("create", path="archive")
        shipping.put(5)
        pauses = [shipping.step() for _ in range(8)]
        assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        (state,) = shipping.replicator.copies()
        assert not state.in_sync
        assert state.lag_bytes > 0
        assert "cannot be written" in str(state.last_error)
        assert shipping.replicator.stats()["errors"] == 8
        shipping.files.plan.heal()
        assert shipping.step() == 1.0
        (state,) = shipping.replicator.copies()
        assert state.in_sync
        assert "cannot be written" in str(state.last_error)


def test_a_close_ships_the_rest_unless_the_archive_fails(tmp_path: Path) -> None:
    with Shipping(tmp_path / "store", tmp_path / "archive") as shipping:
        shipping.step()
        shipping.put(200)
    restore(str(tmp_path / "archive"), tmp_path / "copy")
    assert bodies(tmp_path / "copy") == bodies(tmp_path / "store")
    with Shipping(tmp_path / "store", tmp_path / "archive") as shipping:
        shipping.files.plan.fail("create", path="archive")
        shipping.step()
        shipping.put(1)
        called = shipping.files.plan.total
        shipping.replicator.close()
        assert shipping.files.plan.total == called
        assert shipping.step() is None


def test_a_close_gives_up_when_its_time_is_over(tmp_path: Path) -> None:
    with Shipping(tmp_path / "store", tmp_path / "archive", close_ms=0) as shipping:
        shipping.step()
        shipping.put(10)
        end = shipping.replicator.stats()["shipped_offset"]
        shipping.replicator.close()
        assert shipping.replicator.stats()["shipped_offset"] == end
        assert shipping.replicator._shipper is not None
        with pytest.raises(StoppedError):
            shipping.replicator._shipper.round()


def test_no_put_waits(tmp_path: Path) -> None:
    with Shipping(tmp_path / "store", tmp_path / "archive") as shipping:
        assert not shipping.replicator.appender_waits
        found: list[CopyOutcome] = []
        shipping.replicator.copied(1, found.append)
        assert found == [CopyOutcome.NOT_AVAILABLE]
        shipping.replicator.advanced(5)
        shipping.replicator.failed("a disk")


def test_a_folder_within_the_store_or_none_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Shipping(root, tmp_path / "archive") as shipping:
        for url, text in (("", "is not set"), (str(root), "within the store"), (f"file://{root}/x", "within")):  # fmt: skip
            with pytest.raises(ConfigError, match=text):
                ShipReplicator(ShipOptions(url=url), shipping.replicator.context, shipping.replicator.log)  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [{"interval_ms": 1}, {"compress": "lzma"}, {"parallel": 0}, {"generations": 0}]
)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ShipOptions(url="x", **wrong)


def test_a_real_thread_ships_a_real_store(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "archive"
    store = penstock.open(root, environ={}, **SMALL)
    context_files = Files()
    with store:
        assert store._engine is not None
        context = Context(
            root=root, files=context_files, clock=store._engine.clock, geometry=Geometry(),
            spawn=store._engine.crew,
        )  # fmt: skip
        options = ShipOptions(url=str(target), interval_ms=20, parallel=3)
        replicator = ShipReplicator(options, context, StoreLog(store))
        replicator.start()
        for number in range(500):
            store.put("t", b"%d" % number + b"x" * 500)
        limit = time.monotonic() + 20
        while replicator.stats()["shipped_offset"] < replicator.log.visible_offset:
            assert time.monotonic() < limit
            time.sleep(0.01)
        replicator.close()
    restore(str(target), tmp_path / "copy")
    assert bodies(tmp_path / "copy") == bodies(root)
