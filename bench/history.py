"""`python -m bench.history`: shows the trend of each ratio from run to run, so that a slowdown is visible.

`bench/history.jsonl` has one line per recorded run: date, machine, commit, and the ratios. Only runs on the same kind
of machine are compared; a ratio that fell by more than the spread of both runs is marked.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench.results import Result

FILE = Path(__file__).parent / "history.jsonl"
Line = dict[str, Any]


def line_of(result: Result) -> Line:
    """Return the line of a run: each goal's median with its spread."""
    return {
        **{name: result[name] for name in ("date", "machine", "commit", "full", "rounds")},
        "ratios": {
            f"{_whole(result, number)} / {goal['against']}": [
                round(goal[part], 4) for part in ("median", "low", "high")
            ]
            for number, goal in enumerate(result["goals"])
            if goal["median"] is not None
        },
    }


def _whole(result: Result, number: int) -> str:
    """Return a unique name of a goal; that of a goal for comparison includes the work of the line before it."""
    goal = result["goals"][number]
    before = result["goals"][number - 1]["work"]
    return f"{before}, {goal['work'].strip()}" if goal["beside"] else str(goal["work"])


def keep(result: Result, path: Path = FILE) -> None:
    """Add a run."""
    with path.open("a") as file:
        file.write(json.dumps(line_of(result)) + "\n")


def read(path: Path = FILE) -> list[Line]:
    """Return all recorded runs, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_slower(before: list[float], now: list[float], *, is_limit: bool = False) -> bool:
    """Return whether a ratio, as [median, low, high], has become worse: its spread is outside the earlier spread.

    A figure that must stay under a limit is measured once per run, so a fiftieth of it counts as its spread.
    """
    return now[1] > 1.02 * before[2] if is_limit else now[2] < before[1]


def trend(lines: list[Line], last: int = 6) -> str:
    """Return a table of the last runs on the machine of the newest one."""
    if not lines:
        return "no run was recorded yet: python -m bench --keep"
    kind = lines[-1]["machine"]
    same = [line for line in lines if line["machine"] == kind][-last:]
    works = list(dict.fromkeys(work for line in same for work in line["ratios"]))
    head = "".join(f"{line['date'][2:] + ' ' + line['commit'][:6]:>17}" for line in same)
    rows = [kind, f"{'':78}{head}"]
    for work in works:
        found = [line["ratios"].get(work) for line in same]
        cells = "".join(f"{ratio[0]:>17.3g}" if ratio else f"{'-':>17}" for ratio in found)
        known = [ratio for ratio in found if ratio]
        is_limit = work.endswith("at most")
        fell = len(known) > 1 and found[-1] and is_slower(known[-2], known[-1], is_limit=is_limit)
        rows.append(f"{work:78}{cells}{'  SLOWER' if fell else ''}")
    return "\n".join(rows)


def main() -> None:
    """Print the trend."""
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__)
    parser.add_argument("--last", type=int, default=6, help="number of runs shown")
    print(trend(read(), parser.parse_args().last))


if __name__ == "__main__":
    main()
