"""Workers and drivers of a running stream killed for real; see `sinkkills`."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.lanes import SEED

KILLS = 25


@pytest.mark.parametrize(("shards", "share"), [(0, 0.7), (2, 0.3)])
def test_a_stream_whose_workers_are_killed_writes_each_row_once(
    spark: Any, tmp_path: Path, shards: int, share: float
) -> None:
    from tests.night.spark import sinkkills  # noqa: PLC0415 - needs pyspark

    run = sinkkills.Run(tmp_path, shards)
    producer = sinkkills.Producer(run.root)
    try:
        sinkkills.kill_workers(spark, run, round(KILLS * share), random.Random(SEED))
    finally:
        others = producer.stop()
    assert run.check() > 0
    assert others > 0
    print("\n".join(run.trap.deaths()))


def test_a_stream_whose_driver_is_killed_goes_on_in_the_next(spark: Any, tmp_path: Path) -> None:
    from tests.night.spark import sinkkills  # noqa: PLC0415 - as above

    chance = random.Random(SEED)
    run = sinkkills.Run(tmp_path)
    for _ in range(2):
        sinkkills.kill_driver(run, chance)
    # What the dead drivers left of workers may commit yet; the next one waits for it.
    assert run.go(spark)
    assert run.check() == 2 * 6 * sinkkills.LINES
