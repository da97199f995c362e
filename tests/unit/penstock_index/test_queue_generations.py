"""Which records belong to the present generation of their queue."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.penstock_index.test_consume_queue import filled, opened

from penstock.contracts import Trust
from penstock.testing import WrittenLog
from penstock_index.queue_files import ENTRY
from penstock_index.queue_generations import First, Generations, Verdict
from penstock_index.queue_runs import Run, runs_of


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 300)


def judged(log: WrittenLog, root: Path, run: Run) -> Verdict:
    made = filled(log, root)
    trust = Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False)
    generations = Generations(trust, made._queues)
    assert run.topic is not None
    key = (run.topic, run.queue)
    return generations.judge(key, made._queues[key], run)


def run_of(log: WrittenLog, *, row: int = 0) -> Run:
    return list(runs_of(log.batches()[0]))[row]


def test_records_that_have_their_entries_belong_to_their_queue(
    log: WrittenLog, tmp_path: Path
) -> None:
    run = run_of(log)
    verdict = judged(log, tmp_path, run)
    assert verdict.keep.all()
    assert verdict.known.all()
    assert verdict.cut is None


def test_a_restart_at_0_after_all_entries_is_a_new_generation(
    log: WrittenLog, tmp_path: Path
) -> None:
    run = run_of(log)
    later = log.end_offset + 1000
    data = bytearray(run.data[:20])
    data[:8] = later.to_bytes(8, "big")
    restart = run._replace(ordinal=0, data=bytes(data), log_offset=later, packed_times=run.packed_times[:8])  # fmt: skip
    verdict = judged(log, tmp_path, restart)
    assert (verdict.keep.tolist(), verdict.cut) == ([True], 0)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_record_in_the_middle_with_offset_0_begins_no_generation_unless_others_follow_it(
    log: WrittenLog, tmp_path: Path, rows: int
) -> None:
    """What follows it tells its offset from a corrupt one: no checksum need cover that."""
    whole = run_of(log)
    at = len(whole.store_times) // 2
    entries = np.frombuffer(whole.data, ENTRY)
    middle = int(entries["log_offset"][at])
    made = opened(log, tmp_path)
    for batch in log.batches(0, middle):
        made.dispatch(batch)
    assert whole.topic is not None
    key = (whole.topic, whole.queue)
    assert made._queues[key].max_offset == whole.ordinal + at
    run = whole._replace(
        ordinal=0, data=entries[at : at + rows].tobytes(), log_offset=middle,
        packed_times=whole.packed_times[8 * at : 8 * (at + rows)],
    )  # fmt: skip
    trust = Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False)
    verdict = Generations(trust, made._queues).judge(key, made._queues[key], run)
    expected = ([False], None) if rows == 1 else ([True, True], 0)
    assert (verdict.keep.tolist(), verdict.cut) == expected


def test_a_queue_that_begins_anew_knows_its_first_entry(log: WrittenLog, tmp_path: Path) -> None:
    made = opened(log, tmp_path)
    trust = Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False)
    generations = Generations(trust, made._queues)
    generations.begin(("t", 0), First(0, 77))
    assert generations._firsts["t", 0] == First(0, 77)
