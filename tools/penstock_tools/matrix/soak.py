"""Explores crashes and failures until the time is over: `python -m penstock_tools.matrix.soak`.

Every story runs on the next combination of installed strategies, with the next seed: first it is crashed
before every call, then it runs again with calls that fail. A problem is printed with the command that
reproduces it, and ends the run.
"""

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.plugins.registry import load_registry
from penstock.testing.crash import Case, Plot, explore, replay
from penstock.testing.failures import explore_failures
from penstock.testing.platter import Survival
from penstock_tools.matrix.report import Combo, combinations

_FAILURES = 40
AS_MANY = {"index.consume-queue.sync_volume_from": 2, "index.consume-queue.summary_from": 1}


class Played(NamedTuple):
    """The results of one seed."""

    seed: int
    label: str
    states: int
    problems: list[str]


def settings_of(combo: Combo) -> dict[str, Any]:
    """Return the settings of a combination that use little memory and lock none."""
    settings = combo.settings()
    if combo.write == "transient-pool":
        settings |= {"write.transient-pool.lock_memory": False, "write.transient-pool.buffers": 2}
    if combo.alloc == "preallocate":
        settings["alloc.preallocate.lock_memory"] = False
    return settings


def play(seed: int, steps: int = 40) -> Played:
    """Explore all cases of one seed and return the results."""
    logging.disable(logging.CRITICAL)
    registry = load_registry()
    combos = [each for each in combinations(registry) if each.conflict(registry) is None]
    # The factor is coprime to most counts, so that consecutive seeds differ in all strategies.
    combo = combos[seed * 7 % len(combos)]
    settings = settings_of(combo)
    # The validity of records is checked in two ways: by the CRC of the whole record, or by queue entries and
    # neighbours. Each combination uses one of them in one round over all combinations, and the other in the next.
    odd = (seed + seed // len(combos)) % 2
    settings["log.checksum"] = "crc32" if odd else "crc32+record"
    if seed // 2 % 2:
        # As in a store with many queues: files are synced together, and a clean close records the ends of the queues.
        settings |= AS_MANY
    plot = Plot(seed=seed, settings=settings, steps=steps)
    states, problems = 0, []
    for outcome in explore(plot):
        states += outcome.states
        if outcome.problem:
            problems.append(f"{outcome.call}: {outcome.problem}\n  {outcome.command}")
    for failed in explore_failures(plot, _FAILURES):
        states += failed.states
        if failed.problem:
            problems.append(f"seed {seed}, {combo.label}, {failed.failure}: {failed.problem}")
    return Played(seed, combo.label, states, problems)


def soak(first_seed: int, minutes: float, jobs: int) -> Iterator[Played]:
    """Explore seed after seed in some processes, until the time is over or a problem is found; yields the results."""
    end = time.monotonic() + minutes * 60
    spawner = multiprocessing.get_context("forkserver")
    with spawner.Pool(jobs, maxtasksperchild=20) as pool:
        seeds = iter(range(first_seed, sys.maxsize))
        waiting = [pool.apply_async(play, (next(seeds),)) for _ in range(jobs)]
        while waiting:
            played = waiting.pop(0).get()
            yield played
            if played.problems:
                pool.terminate()
                return
            if time.monotonic() < end:
                waiting.append(pool.apply_async(play, (next(seeds),)))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock_tools.matrix.soak",
        description=(__doc__ or "").partition("\n\n")[2],
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument(
        "--minutes", type=float, default=60, help="duration in minutes (default: 60)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--point", type=int, help="run only one case: the number of the call")
    parser.add_argument("--survival", default="none", choices=[each.value for each in Survival])
    parser.add_argument(
        "--steps",
        type=int,
        default=40,
        help="number of steps of the story of --point (default: 40)",
    )
    parser.add_argument(
        "--settings", default="{}", help="settings of the store of --point, as JSON"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns 1 if there is any problem, otherwise 0."""
    asked = _parser().parse_args(arguments)
    if asked.point is not None:
        plot = Plot(seed=asked.seed, settings=json.loads(asked.settings), steps=asked.steps)
        outcome = replay(plot, Case(asked.point, Survival(asked.survival)))
        print(f"before {outcome.call}: {outcome.problem or 'no problem'}")
        return 1 if outcome.problem else 0
    began, states, problems = time.monotonic(), 0, 0
    for number, played in enumerate(soak(asked.seed, asked.minutes, asked.jobs), 1):
        states += played.states
        problems += len(played.problems)
        minutes = (time.monotonic() - began) / 60
        print(
            f"seed {played.seed} ({played.label}): {played.states} states; {states} in {number} "
            f"stories and {minutes:.1f} minutes",
            *played.problems,
            sep="\n  ", flush=True,
        )  # fmt: skip
    print(f"{states} states, {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
