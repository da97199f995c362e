"""Rounds over all combinations, each in a process of its own, in another order each round."""

import multiprocessing
import os
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
from penstock.matrix.measure import Plan

_ANSWER_S = 120
_SEED = 20_130_612


@attrs.define
class Outcome:
    """What the rounds of one combination gave: a dictionary of figures each, or why there are none."""

    combo: Combo
    rounds: list[dict[str, float]] = attrs.Factory(list)
    failure: str | None = None


def run(
    folder: Path,
    combos: Sequence[Combo],
    plan: Plan,
    *,
    settings: dict[str, Any],
    told: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Measure every combination in every round; `told` is called after each.

    Works in a folder of its own inside `folder`, and removes it, whatever happens.
    """
    outcomes = [Outcome(combo) for combo in combos]
    spawner = multiprocessing.get_context("forkserver")
    spawner.set_forkserver_preload(["penstock.matrix.measure"])
    home = Path(tempfile.mkdtemp(prefix="penstock-matrix-", dir=folder))
    try:
        for number in range(plan.rounds):
            order = list(outcomes)
            random.Random(_SEED + number).shuffle(order)
            for outcome in order:
                if outcome.failure is None:
                    given = {**outcome.combo.settings(), **settings}
                    _measure(spawner, home / "store", outcome, given, plan)
                told(outcome)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return outcomes


def _measure(
    spawner: Any, path: Path, outcome: Outcome, settings: dict[str, Any], plan: Plan
) -> None:
    try:
        figures = _ask(spawner, measure.measure, path, settings, plan)
        figures |= _ask(spawner, measure.recover, path, settings, plan)
        outcome.rounds.append(figures)
    except (EOFError, TimeoutError) as error:
        outcome.failure = f"its process ended without figures ({type(error).__name__})"
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _ask(
    spawner: Any,
    work: Callable[[str, dict[str, Any], Plan, Connection], None],
    path: Path,
    settings: dict[str, Any],
    plan: Plan,
) -> dict[str, float]:
    """Run `work` in a child, return what it sends, and kill it if it does not end by itself."""
    listen, tell = spawner.Pipe(duplex=False)
    process = spawner.Process(target=work, args=(str(path), settings, plan, tell))
    process.start()
    tell.close()
    try:
        if not listen.poll(_ANSWER_S):
            raise TimeoutError
        answer: dict[str, float] = listen.recv()
    finally:
        if work is not measure.recover and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
        process.join(_ANSWER_S)
        listen.close()
    return answer
