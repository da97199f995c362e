"""Measures all combinations in rounds, each in its own process, in a different order each round."""

import multiprocessing
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs

from penstock.matrix import measure
from penstock.matrix.combos import Combo
from penstock.matrix.measure import FAILED, FIGURES, REFUSED, Answer, MeasurePlan

_ANSWER_S = 120
_END_S = 20
_SEED = 20_130_612


@attrs.define
class RunOutcome:
    """The results of one combination: a dictionary of figures per round, or the reason why there are none.

    `failure` is the error of a round; `refusal` is the reason why no store can be opened with the combination.
    """

    combo: Combo
    rounds: list[dict[str, float]] = attrs.Factory(list)
    failure: str | None = None
    refusal: str | None = None


def run(
    folder: Path,
    combos: Sequence[Combo],
    plan: MeasurePlan,
    *,
    settings: dict[str, Any],
    on_progress: Callable[[RunOutcome], None] = lambda _: None,
) -> list[RunOutcome]:
    """Measure every combination in every round; `on_progress` is called after each.

    `settings` apply to all combinations; the picks of a combination take precedence. Works in a temporary folder
    inside `folder`, and deletes it in every case.
    """
    outcomes = [RunOutcome(combo) for combo in combos]
    spawner = multiprocessing.get_context("forkserver")
    spawner.set_forkserver_preload(["penstock.matrix.measure"])
    home = Path(tempfile.mkdtemp(prefix="penstock-matrix-", dir=folder))
    try:
        for number in range(plan.rounds):
            order = list(outcomes)
            random.Random(_SEED + number).shuffle(order)
            for outcome in order:
                if outcome.failure is None and outcome.refusal is None:
                    given = {**settings, **outcome.combo.settings()}
                    _measure(spawner, home / "store", outcome, given, plan)
                on_progress(outcome)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return outcomes


def _measure(
    spawner: Any, path: Path, outcome: RunOutcome, settings: dict[str, Any], plan: MeasurePlan
) -> None:
    """Measure one combination once, and add figures, failure or refusal to its outcome."""
    figures: dict[str, float] = {}
    try:
        for work in (measure.measure, measure.recover):
            kind, answer = _ask(spawner, work, path, settings, plan)
            if kind == FIGURES:
                figures |= answer
            elif kind == REFUSED:
                outcome.refusal = answer
                return
            else:
                outcome.failure = answer
                return
        outcome.rounds.append(figures)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _ask(
    spawner: Any,
    work: Callable[[str, dict[str, Any], MeasurePlan, Connection], None],
    path: Path,
    settings: dict[str, Any],
    plan: MeasurePlan,
) -> Answer:
    """Run `work` in a child process and return its answer; the child has ended by then, killed if necessary."""
    listen, tell = spawner.Pipe(duplex=False)
    process = spawner.Process(target=work, args=(str(path), settings, plan, tell))
    process.start()
    tell.close()
    answer: Answer | None = None
    is_over = work is measure.recover
    try:
        late: Answer = (FAILED, f"the measuring process did not answer within {_ANSWER_S} s")
        answer = listen.recv() if listen.poll(_ANSWER_S) else late
    except EOFError:
        is_over = True
    finally:
        # A measuring process is killed with unsynced bytes; a recovering process may end by itself.
        if is_over:
            process.join(_END_S)
        process.kill()
        process.join()
        listen.close()
    return answer or (
        FAILED,
        f"the measuring process ended without an answer: {_ending(process.exitcode)}",
    )


def _ending(code: int | None) -> str:
    """Return how a process ended, from its exit code."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
