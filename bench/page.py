"""`python -m bench.page [FILE]`: write the figures and plots of one run into `docs/performance.md`.

FILE is what `python -m bench --json FILE` wrote; it is kept beside the plots, so without FILE the page is made again from the
kept one. Tables stand between markers in the page; what is around them is written by hand.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from bench.engines import ENGINES
from bench.goals import NOT_MEASURED
from bench.pictures import NAMES, draw
from bench.results import Result, load, median, save

DOCS = Path(__file__).parents[1] / "docs"
KEPT = "performance.json"


def goals(result: Result) -> str:
    """Return the table of goals."""
    rows = ["| work | against | ratio (spread) | goal | |", "|---|---|---|---|---|"]
    for goal in result["goals"]:
        if goal["median"] is None:
            found = NOT_MEASURED
        else:
            found = f"{goal['median']:.3g} ({goal['low']:.3g}-{goal['high']:.3g})"
        least = f"under {goal['least']:g}" if goal["is_limit"] else f"{goal['least']:g}"
        verdict = {"met": "met", "MISSED": "**missed**"}.get(goal["verdict"], "")
        work = f"*{goal['work'].strip()}*" if goal["beside"] else goal["work"]
        rows.append(f"| {work} | {goal['against']} | {found} | {least} | {verdict} |")
    return "\n".join(rows)


def machine(result: Result) -> str:
    """Return what was measured, when and on what."""
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
        if work.endswith(", receipts"):
            continue
        cells = [
            f"{_words(name)} {median(result, work, name):,.4g}" for name in engines if name in found
        ]
        rows.append(f"| {work} | {result['units'][work]} | {'; '.join(cells)} |")
    return "\n".join(["| work | unit | medians |", "|---|---|---|", *rows])


def _words(engine: str) -> str:
    name = NAMES.get(engine)
    return name if name is not None else f"`{engine}`"


PARTS: dict[str, Callable[[Result], str]] = {"machine": machine, "goals": goals, "figures": figures}


def filled(page: str, result: Result) -> str:
    """Return the page with its tables made anew."""
    for name, made in PARTS.items():
        before, found, rest = page.partition(f"<!-- bench {name} -->\n")
        old, ended, after = rest.partition("<!-- end -->")
        if not found or not ended or "<!--" in old:
            raise ValueError(f"the page has no place for {name}")
        page = f"{before}{found}{made(result)}\n{ended}{after}"
    return page


def main() -> None:
    """Make the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="a run's JSON")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page lies")
    asked = parser.parse_args()
    extra = asked.docs / "extra"
    result = load(asked.file or extra / KEPT)
    save(result, extra / KEPT)
    page = asked.docs / "performance.md"
    page.write_text(filled(page.read_text(), result))
    for path in draw(result, extra):
        print(path.name)


if __name__ == "__main__":
    main()
