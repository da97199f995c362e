"""`python -m bench.page [FILE]`: write the figures and plots of one run into `docs/performance.md` and the README.

FILE is the output of `python -m bench --json FILE`. It is stored beside the plots; without FILE the page is generated
from the stored one. Tables are between markers in the page; the text around them is written by hand.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.engines import ENGINES
from bench.goals import NOT_MEASURED
from bench.pictures import NAMES, draw
from bench.results import Result, load, median, save
from bench.workloads.consumers import DURABLE, EACH, HAND, HAND_ACROSS, THREADS

DOCS = Path(__file__).parents[1] / "docs"
KEPT = "performance.json"


def goals(result: Result) -> str:
    """Return the table of goals."""
    rows = [
        "| work | against | ratio (spread) | goal | | no record CRC | device bytes a message |",
        "|---|---|---|---|---|---|---|",
    ]
    for goal in result["goals"]:
        if goal["median"] is None:
            found = NOT_MEASURED
        else:
            found = f"{goal['median']:.3g} ({goal['low']:.3g}-{goal['high']:.3g})"
        least = f"under {goal['least']:g}" if goal["is_limit"] else f"{goal['least']:g}"
        verdict = {"met": "met", "MISSED": "**missed**"}.get(goal["verdict"], "")
        work = f"*{goal['work'].strip()}*" if goal["beside"] else goal["work"]
        work = f"**{work}**" if goal["must"] else work
        bare = "" if goal["bare"] is None else f"{goal['bare']:.3g}"
        device = "" if goal["device_bytes"] is None else f"{goal['device_bytes']:,.0f}"
        cells = (work, goal["against"], found, least, verdict, bare, device)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


# The number of rows in the README.
_BEST = 3
# Not engines: a goal beside one of them is a limit in other words.
_NO_ENGINE = ("CPU of", "`pwrite`")


def wins(result: Result) -> str:
    """Return the work that is faster than in another engine, the largest ratio first; names the rest."""
    rows, summary = _compared(result)
    return "\n".join([*rows, "", summary])


def best_wins(result: Result) -> str:
    """Return the largest ratios of `wins`, and in how many comparisons Penstock is slower."""
    rows, summary = _compared(result)
    return "\n".join([*rows[: 2 + _BEST], "", summary.partition(" Slower in")[0]])


def _compared(result: Result) -> tuple[list[str], str]:
    compared = [
        goal for goal in result["goals"]
        if goal["median"] is not None and not goal["is_limit"] and not goal["beside"]
        and not goal["against"].startswith(_NO_ENGINE)
    ]  # fmt: skip
    compared.sort(key=lambda goal: -goal["median"])
    rows = ["| work | compared with | times as fast (spread) |", "|---|---|---:|"]
    rows += [
        f"| {goal['work'].strip()} | {goal['against']} | **{goal['median']:.2g}** "
        f"({goal['low']:.2g}-{goal['high']:.2g}) |"
        for goal in compared
        if goal["median"] >= 1
    ]
    slower = [
        f"{goal['work'].strip()} (against {goal['against']}, {goal['median']:.2g})"
        for goal in compared
        if goal["median"] < 1
    ]
    faster = f"Faster in {len(compared) - len(slower)} of {len(compared)} comparisons."
    return rows, f"{faster} Slower in: {'; '.join(slower) or 'none'}."


# The first table of the page: text, a figure's name, the engine, and how the figure is shown.
_ABSOLUTE = (
    ("puts, one by one, 128 B", "put 128 B", "penstock", "rate"),
    ("puts, one by one, 1 KiB", "put 1 KiB", "penstock", "rate"),
    ("`put_many` of 1,000, 128 B", "put_many 1000 x 128 B", "penstock", "rate"),
    ("`put_arrow` of 10,000, 128 B", "put_arrow 10000 x 128 B", "penstock", "rate"),
    ("`put_arrow` of 10,000, 1 KiB", "put_arrow 10000 x 1 KiB", "penstock", "rate"),
    ("puts of 1 KiB on disk before the answer, 1 thread", "sync 1 threads, 1 KiB", "penstock-sync", "rate"),
    ("the same, 64 threads", "sync 64 threads, 1 KiB", "penstock-sync", "rate"),
    ("batches of 1,000 x 1 KiB, each on disk before the answer", "sync_many 1000 x 1 KiB", "penstock-sync", "rate"),
    ("`read` with bodies, 128 B", "read 128 B", "penstock", "rate"),
    ("`to_arrow`, 128 B", "to_arrow 128 B", "penstock", "rate"),
    ("`to_arrow`, 1 KiB", "to_arrow 1 KiB", "penstock", "rate"),
    ("`find` by key", "find in *", "penstock-index", "us"),
    ("from `put` to a follower in another process, median", "tail, put to a follower in another process, us",
     "penstock", "us"),
    ("consumed in batches of 100, each acknowledged on disk, 128 B", f"{DURABLE}, 128 B", "consumer", "rate"),
    ("the same, 4 threads", f"{THREADS}, 128 B", "consumer", "rate"),
    ("consumed and acknowledged one by one, without waiting for the disk, 128 B", f"{EACH}, 128 B", "consumer", "rate"),
    ("from `put` to the hand of a consumer in the same process, median", f"{HAND}, us", "consumer", "us"),
    ("the same, 99 % take no longer", f"{HAND}, 99 %, us", "consumer", "us"),
    ("from `put` to the hand of a consumer in another process, median", f"{HAND_ACROSS}, us", "consumer", "us"),
    ("the same, 99 % take no longer", f"{HAND_ACROSS}, 99 %, us", "consumer", "us"),
    ("99.9 % of puts take no longer, 128 B", "latency of a put, 128 B, 99.9 %", "penstock", "ns"),
    ("open 1 GiB after a kill, all messages there", "recovery of a killed 1 GiB store", "penstock", "ms"),
    ("open 1 GiB after a clean close", "open a clean 1 GiB store", "penstock", "ms"),
    ("open a store of 20,000 queues", "queues 20,000, open", "penstock", "ms"),
    ("memory of the whole process, 20,000 queues", "memory of 20,000 queues", "penstock", "MB"),
    ("`import penstock`, processor time", "import, processor time", "penstock", "ms"),
    ("the first `open` of a process, with numpy and all that it imports",
     "first open of a process, with all that it imports", "penstock", "ms"),
)  # fmt: skip


def absolute(result: Result) -> str:
    """Return Penstock's own figures: messages per second, and times."""
    rows = ["| | |", "|---|---:|"]
    for words, asked, engine, unit in _ABSOLUTE:
        begun = (name for name in result["figures"] if name.startswith(asked[:-1]))
        work = next(begun, asked) if asked.endswith("*") else asked
        found = median(result, work, engine)
        if found is not None:
            rows.append(f"| {words} | {_in_words(found, unit)} |")
    return "\n".join(rows)


def _in_words(figure: float, unit: str) -> str:
    if unit == "rate":
        rate = 1e9 / figure
        return f"{rate / 1e6:.2f} million a second" if rate >= 1e6 else f"{rate:,.0f} a second"
    if unit == "ns":
        figure, unit = figure / 1000, "us"
    return f"{figure:,.3g} {'µs' if unit == 'us' else unit}"


def machine(result: Result) -> str:
    """Return the date, the machine and the versions of the run."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    kind = "the full run" if result["full"] else "the short run"
    return (
        f"Measured on {result['date']} at commit {result['commit'] or '?'}, {kind}, {result['rounds']} rounds, on: "
        f"{result['machine']}. RocketMQ 5.3.3; {versions}."
    )


def figures(result: Result) -> str:
    """Return every figure: medians, engines side by side."""
    engines = [
        name for name in ENGINES if any(name in found for found in result["figures"].values())
    ]
    rows = []
    for work, found in result["figures"].items():
        if work.endswith((", receipts", ", device bytes")):
            continue
        cells = [
            f"{_words(name)} {median(result, work, name):,.4g}" for name in engines if name in found
        ]
        rows.append(f"| {work} | {result['units'][work]} | {'; '.join(cells)} |")
    return "\n".join(["| work | unit | medians |", "|---|---|---|", *rows])


def _words(engine: str) -> str:
    name = NAMES.get(engine)
    return name if name is not None else f"`{engine}`"


PARTS: dict[str, Callable[[Result], str]] = {
    "machine": machine, "absolute": absolute, "wins": wins, "goals": goals, "figures": figures,
}  # fmt: skip
README_PARTS: dict[str, Callable[[Result], str]] = {"wins": best_wins}


def filled(page: str, result: Result, parts: Mapping[str, Callable[[Result], str]] = PARTS) -> str:
    """Return the page with its tables generated again."""
    for name, made in parts.items():
        before, found, rest = page.partition(f"<!-- bench {name} -->\n")
        old, ended, after = rest.partition("<!-- end -->")
        if not found or not ended or "<!--" in old:
            raise ValueError(f"the page has no markers for {name}")
        page = f"{before}{found}{made(result)}\n{ended}{after}"
    return page


def main() -> None:
    """Generate the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="a run's JSON")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of the page")
    asked = parser.parse_args()
    extra = asked.docs / "extra"
    result = load(asked.file or extra / KEPT)
    save(result, extra / KEPT)
    page = asked.docs / "performance.md"
    page.write_text(filled(page.read_text(), result))
    readme = asked.docs.parent / "README.md"
    readme.write_text(filled(readme.read_text(), result, README_PARTS))
    for path in draw(result, extra):
        print(path.name)


if __name__ == "__main__":
    main()
