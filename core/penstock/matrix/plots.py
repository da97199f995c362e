"""The plots of a report, as SVG text for the page. Needs matplotlib, an extra."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import MissingExtraError
from penstock.matrix.summary import Report, Row

# A colour used for nothing else, which is then replaced by the text colour of the page.
_INK = "#123456"
_BLUE, _ORANGE, _GREEN, _GREY = "#3b7dd8", "#d9822b", "#2f9e6e", "#9aa5b1"
_ROW_INCHES = 0.21


def _pyplot() -> Any:
    """Return pyplot with the style of the page; raises `MissingExtraError` without matplotlib."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

        mpl.use("svg")
        from matplotlib import pyplot  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", "plots", "the page of penstock matrix") from error
    pyplot.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "penstock", "font.family": "sans-serif", "font.size": 9,
        "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK,
        "ytick.color": _INK, "axes.spines.top": False, "axes.spines.right": False,
        "axes.spines.left": False, "ytick.left": False, "axes.grid": True, "axes.grid.axis": "x",
        "grid.color": _GREY, "grid.alpha": 0.25, "axes.axisbelow": True, "figure.facecolor": "none",
        "axes.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False,
    })  # fmt: skip
    return pyplot


def ready() -> None:
    """Raise `MissingExtraError` if matplotlib is missing, before the measurement."""
    _pyplot()


def plots(report: Report) -> list[tuple[str, str, str]]:
    """Return (title, description, SVG) of each plot."""
    rows = [row for row in report["rows"] if row["figures"]]
    if not rows:
        return []
    pyplot = _pyplot()
    made = []
    for title, about, draw in (
        ("Throughput", "MiB/s of bodies in batches: until the flush policy lets the put return, and with a flush after each MiB.", _throughput),
        ("Latency of one put", "Microseconds, logarithmic: p50, p99, p99.9 and the slowest.", _latency),
        ("Durable puts", "Durable puts per second; a put counts once it is on disk.", _durable),
        ("After a kill", "Milliseconds to open a killed store.", _recovery),
        ("Memory", "Peak of the process's own memory in MiB, without pages of mapped files.", _memory),
        ("Disk", "Bytes on disk per byte of body, including preallocated files and files kept for recycling.", _disk),
    ):  # fmt: skip
        made.append((title, about, _draw_svg(pyplot, rows, draw)))
    return made


def _draw_svg(pyplot: Any, rows: list[Row], draw: Callable[[Any, list[Row]], None]) -> str:
    """Return one plot as SVG text."""
    height = 0.9 + _ROW_INCHES * max(len(rows), 3)
    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    draw(axes, rows)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    # Sized by the page, not in points.
    return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)


def _values(rows: Sequence[Row], metric: str) -> list[float]:
    return [row["figures"].get(metric, {"median": 0.0})["median"] for row in rows]


def _labelled(axes: Any, rows: Sequence[Row]) -> list[int]:
    places = list(range(len(rows)))
    axes.set_yticks(places, [row["label"] for row in rows])
    return places


def _bars(axes: Any, rows: list[Row], bars: Sequence[tuple[str, str, str]]) -> None:
    places = _labelled(axes, rows)
    thick = 0.8 / len(bars)
    for number, (metric, name, colour) in enumerate(bars):
        at = [place - 0.4 + thick * (number + 0.5) for place in places]
        axes.barh(at, _values(rows, metric), thick * 0.92, color=colour, label=name)
    if len(bars) > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(bars))


def _throughput(axes: Any, rows: list[Row]) -> None:
    _bars(
        axes,
        rows,
        [("batch_mib_s", "put_many", _BLUE), ("synced_mib_s", "put_many, then flush", _ORANGE)],
    )
    axes.set_xlabel("MiB/s")


def _latency(axes: Any, rows: list[Row]) -> None:
    """Draw the percentiles of put latencies."""
    places = _labelled(axes, rows)
    low, high = _values(rows, "put_p50_us"), _values(rows, "put_max_us")
    axes.hlines(places, low, high, color=_GREY, linewidth=1, alpha=0.5)
    for metric, name, colour, marker in (
        ("put_p50_us", "p50", _GREEN, "o"), ("put_p99_us", "p99", _BLUE, "D"),
        ("put_p999_us", "p99.9", _ORANGE, "s"), ("put_max_us", "slowest", _GREY, "|"),
    ):  # fmt: skip
        axes.scatter(
            _values(rows, metric), places, s=22, color=colour, marker=marker, label=name, zorder=3
        )
    axes.set_xscale("log")
    axes.set_xlabel("microseconds")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4)


def _durable(axes: Any, rows: list[Row]) -> None:
    _bars(
        axes,
        rows,
        [("sync_per_s", "1 thread", _GREEN), ("sync_threads_per_s", "many threads", _BLUE)],
    )
    axes.set_xlabel("puts/s")


def _recovery(axes: Any, rows: list[Row]) -> None:
    _bars(axes, rows, [("recovery_ms", "recovery", _BLUE)])
    axes.set_xlabel("ms")


def _memory(axes: Any, rows: list[Row]) -> None:
    _bars(axes, rows, [("memory_mib", "memory", _GREEN)])
    axes.set_xlabel("MiB")


def _disk(axes: Any, rows: list[Row]) -> None:
    _bars(axes, rows, [("disk_per_byte", "disk", _ORANGE)])
    axes.set_xlabel("bytes per byte of body")
