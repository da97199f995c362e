"""Plots of the counts of `stats`: messages by hour, topics, tags, keys, sizes. Needs matplotlib."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.errors import MissingExtraError

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, NullFormatter
except ImportError as error:
    raise MissingExtraError("matplotlib", "plots", "the plots of penstock spark stats") from error

_BAR, _LIGHT, _DARK = "#3b6ea5", "#a8c4e0", "#1d3d5c"
_BARS_MAX = 15
_NAME_MAX = 40
_DPI = 110
# Sizes that differ by more than this are shown on a logarithmic axis.
_WIDE = 20
_PLAIN_BELOW = 10_000


def draw(report: Any, folder: Path) -> list[Path]:
    """Draw one plot for each table that has rows; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: list[tuple[str, list[dict[str, Any]], Callable[[Any, Any], None]]] = [
        ("hours.png", report.hours, _hours),
        ("topics.png", report.topics, _bars("Messages by topic", "messages")),
        ("bytes.png", report.topics, _bars("Bytes of bodies by topic", "bytes")),
        ("tags.png", report.tags, _bars("Messages by tag", "messages")),
        ("keys.png", report.keys, _bars("Messages by key, the most frequent", "messages")),
        ("sizes.png", report.topics, _sizes),
    ]
    drawn = []
    for name, rows, paint in pictures:
        if rows:
            drawn.append(_picture(folder / name, rows, paint))
    return drawn


def _picture(path: Path, rows: list[dict[str, Any]], paint: Callable[[Any, Any], None]) -> Path:
    # Without pyplot: nothing is global, and no display is asked for.
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    paint(axes, rows)
    figure.savefig(path, dpi=_DPI)
    return path


def _hours(axes: Any, rows: list[dict[str, Any]]) -> None:
    times = [datetime.fromisoformat(row["name"]) for row in rows]
    counts = [row["messages"] for row in rows]
    axes.vlines(times, 0, counts, color=_BAR, linewidth=max(0.6, min(12, 400 / len(rows))))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", rotation=30)
    axes.set_title("Messages by hour (UTC)")
    axes.set_ylabel("messages an hour")


def _bars(title: str, column: str) -> Callable[[Any, Any], None]:
    def paint(axes: Any, rows: list[dict[str, Any]]) -> None:
        shown = sorted(rows, key=lambda row: -row[column])[:_BARS_MAX][::-1]
        names = [_short(row["name"]) for row in shown]
        bars = axes.barh(range(len(shown)), [row[column] for row in shown], color=_BAR)
        axes.bar_label(bars, fmt=_count, padding=3, fontsize=8)
        axes.set_yticks(range(len(shown)), names, fontsize=8)
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.set_title(title + _more(rows))
        axes.set_xlabel(column)

    return paint


def _sizes(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the range of sizes of each topic, from smallest to largest, with median and 99th percentile."""
    shown = rows[:_BARS_MAX][::-1]
    at = range(len(shown))
    axes.hlines(at, [max(r["min"], 1) for r in shown], [max(r["max"], 1) for r in shown], color=_LIGHT,
        linewidth=6)  # fmt: skip
    axes.plot([max(r["p50"], 1) for r in shown], at, "o", color=_DARK, label="half are smaller")
    axes.plot([max(r["p99"], 1) for r in shown], at, "|", color=_BAR, markersize=12, markeredgewidth=2.5,
        label="99 in 100 are smaller")  # fmt: skip
    axes.set_yticks(at, [_short(row["name"]) for row in shown], fontsize=8)
    if max(r["max"] for r in shown) > _WIDE * max(min(r["min"] for r in shown), 1):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    axes.set_title("Sizes of bodies by topic, smallest to largest" + _more(rows))
    axes.set_xlabel("bytes")


def _count(number: float) -> str:
    return f"{number:,.0f}" if number < _PLAIN_BELOW else str(EngFormatter(places=1)(number))


def _more(rows: list[dict[str, Any]]) -> str:
    return f" (first {_BARS_MAX} of {len(rows)})" if len(rows) > _BARS_MAX else ""


def _short(name: str) -> str:
    # A dollar sign would begin a formula.
    text = name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"
    return text.replace("$", r"\$")
