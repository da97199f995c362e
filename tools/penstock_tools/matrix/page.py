"""Renders a report as one page without other files: cards, heat map, plots, tables. Plots need matplotlib."""

import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from penstock.errors import MissingExtraError
from penstock_tools.matrix.report import Report, Row, best_value

# A colour used for nothing else, which is then replaced by the text colour of the page.
_INK = "#123456"
_BLUE, _ORANGE, _GREEN, _GREY = "#3b7dd8", "#d9822b", "#2f9e6e", "#9aa5b1"
_ROW_INCHES = 0.21

Draw = Callable[[Any, list[Row]], None]


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
    return [(title, about, _draw_svg(pyplot, rows, draw)) for title, about, draw in _PLOTS]


def _draw_svg(pyplot: Any, rows: list[Row], draw: Draw) -> str:
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


def _bars(*bars: tuple[str, str, str], unit: str) -> Draw:
    """Return a function that draws a bar of each metric for each row."""

    def draw(axes: Any, rows: list[Row]) -> None:
        places = _labelled(axes, rows)
        thick = 0.8 / len(bars)
        for number, (metric, name, colour) in enumerate(bars):
            at = [place - 0.4 + thick * (number + 0.5) for place in places]
            axes.barh(at, _values(rows, metric), thick * 0.92, color=colour, label=name)
        if len(bars) > 1:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(bars))
        axes.set_xlabel(unit)

    return draw


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


# Title, description, and what draws it.
_PLOTS = (
    ("Throughput",
        "MiB/s of bodies in batches: until the flush policy lets the put return, and with a flush after each MiB.",
     _bars(("batch_mib_s", "put_many", _BLUE), ("synced_mib_s", "put_many, then flush", _ORANGE), unit="MiB/s")),
    ("Latency of one put", "Microseconds, logarithmic: p50, p99, p99.9 and the slowest.", _latency),
    ("Durable puts", "Durable puts per second; a put counts once it is on disk.",
     _bars(("sync_per_s", "1 thread", _GREEN), ("sync_threads_per_s", "many threads", _BLUE), unit="puts/s")),
    ("After a kill", "Milliseconds to open a killed store.", _bars(("recovery_ms", "recovery", _BLUE), unit="ms")),
    ("Memory", "Peak of the process's own memory in MiB, without pages of mapped files.",
     _bars(("memory_mib", "memory", _GREEN), unit="MiB")),
    ("Disk", "Bytes on disk per byte of body, including preallocated files and files kept for recycling.",
     _bars(("disk_per_byte", "disk", _ORANGE), unit="bytes per byte of body")),
)  # fmt: skip


_CARDS = (
    ("throughput", "Most messages per second", "put_per_s"),
    ("p99", "Lowest p99 of a put", "put_p99_us"),
    ("durability", "Most durable puts, many threads", "sync_threads_per_s"),
)
_COLUMNS = (
    "put_per_s", "put_p50_us", "put_p99_us", "put_p999_us", "batch_per_s", "sync_per_s", "sync_bytes",
    "sync_threads_per_s", "synced_mib_s", "lag_ms", "recovery_ms", "disk_per_byte", "memory_mib",
)  # fmt: skip


def render(report: Report) -> str:
    """Return the page as HTML text."""
    style = files("penstock_tools.matrix").joinpath("page.css").read_text()
    script = files("penstock_tools.matrix").joinpath("page.js").read_text()
    # "</" would end the script element, even within a string.
    data = json.dumps(report, ensure_ascii=False).replace("</", "<\\/")
    return "\n".join([
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Penstock matrix, {escape(report['made'][:10])}</title><style>{style}</style></head><body><main>",
        *_head(report), *_cards(report), *_heat(report), *_plots(report), *_table(report),
        *_refused(report), *_method(report),
        f'</main><script type="application/json" id="report">{data}</script><script>{script}</script></body></html>',
    ])  # fmt: skip


def number(value: float) -> str:
    """Return a figure with its significant digits."""
    if value >= 100:  # noqa: PLR2004 - three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"  # noqa: PLR2004 - as above


def _head(report: Report) -> Iterable[str]:
    """Yield the heading with the plan and the machine."""
    yield "<h1>Penstock matrix</h1>"
    plan = report["plan"]
    yield (
        f'<p class="soft">{len(report["rows"])} combinations of strategies on one disk; bodies of '
        f"{plan['body']:,} bytes, batches of {plan['batch']:,}, {plan['threads']} putting "
        f"{'thread' if plan['threads'] == 1 else 'threads'}; medians of {plan['rounds']} interleaved rounds. "
        f'Made {escape(report["made"])} in {report["seconds"]:.0f} s.</p><ul class="facts">'
    )
    for name, text in report["machine"].items():
        yield f"<li>{escape(name)} <b>{escape(text)}</b></li>"
    yield "</ul>"


def _cards(report: Report) -> Iterable[str]:
    """Yield a card with the configuration for each best combination."""
    rows = {row["label"]: row for row in report["rows"]}
    yield '<div class="cards">'
    for name, title, metric in _CARDS:
        row = rows.get(report["best"].get(name, ""))
        if row is None:
            continue
        figure, unit = row["figures"][metric], report["metrics"][metric]["unit"]
        yield (
            f'<section class="card"><h3>{escape(title)}</h3><div class="figure">{number(figure["median"])} '
            f"<small>{escape(unit)}</small></div>"
            f'<div class="label">{escape(row["label"])}</div><p class="loses">{_loses(row)}</p>'
            f'<div class="paste"><button type="button">copy</button><pre>{escape(row["config"])}</pre></div></section>'
        )
    yield "</div>"


def _loses(row: Row) -> str:
    return escape(
        f"A put returns when its bytes are {row['acknowledged']}. A crash of the process may lose "
        f"{row['process_crash']}; a crash of the machine, {row['machine_crash']}."
    )


def _heat(report: Report) -> Iterable[str]:
    """Yield the heat map of all combinations."""
    rows = report["rows"]
    if not rows:
        yield "<p>Every requested combination is refused.</p>"
        return
    shown = [*rows, *report["refused"]]
    across = sorted({row["flush"] for row in shown})
    down = sorted({(row["write"], row["alloc"]) for row in shown})
    cells = {
        (row["write"], row["alloc"], row["flush"]): _cell(n if n < len(rows) else None)
        for n, row in enumerate(shown)
    }
    options = "".join(
        f'<option value="{escape(name)}">{escape(about["title"])}</option>'
        for name, about in report["metrics"].items()
    )
    yield "<h2>Heat map</h2><p>Greener is better; the scale is logarithmic from the worst to the best value.</p>"
    yield f'<p><label>Show <select id="metric">{options}</select></label> <span class="soft" id="unit"></span></p>'
    yield '<div class="scroll"><table id="heat"><thead><tr><th>writer, allocator</th>'
    yield "".join(f"<th>{escape(flush)}</th>" for flush in across)
    yield "</tr></thead><tbody>"
    for write, alloc in down:
        line = "".join(
            cells.get((write, alloc, flush), '<td class="cell none">not measured</td>')
            for flush in across
        )
        yield f"<tr><th>{escape(write)} · {escape(alloc)}</th>{line}</tr>"
    yield "</tbody></table></div>"


def _cell(row: int | None) -> str:
    if row is None:
        return '<td class="cell none" title="refused, see below">refused</td>'
    return f'<td class="cell" data-row="{row}"></td>'


def _plots(report: Report) -> Iterable[str]:
    for title, about, svg in plots(report):
        yield f'<h2>{escape(title)}</h2><p>{escape(about)}</p><div class="plot">{svg}</div>'


def _table(report: Report) -> Iterable[str]:
    """Yield the table of all figures."""
    metrics = report["metrics"]
    tops = {name: best_value(report["rows"], name) for name in _COLUMNS}
    yield "<h2>Every figure</h2><p>Medians, with the lowest and the highest round. Click a heading to sort.</p>"
    yield '<div class="scroll"><table id="all"><thead><tr><th data-sort="label">combination</th>'
    yield '<th class="text" data-sort="acknowledged">a put returns</th>'
    for name in _COLUMNS:
        about = metrics[name]
        yield f'<th data-sort="{name}">{escape(about["title"])}<br>{escape(about["unit"])}</th>'
    yield "</tr></thead><tbody>"
    for row in report["rows"]:
        cells = "".join(_figure(row, name, tops[name]) for name in _COLUMNS)
        failed = f" (failed: {row['failure']})" if row["failure"] else ""
        yield (
            f"<tr><td>{escape(row['label'] + failed)}</td>"
            f'<td class="text" title="{_loses(row)}">{escape(row["acknowledged"])}</td>{cells}</tr>'
        )
    yield "</tbody></table></div>"


def _figure(row: Row, metric: str, top: float | None) -> str:
    figure: dict[str, Any] | None = row["figures"].get(metric)
    if figure is None:
        return f"<td>{'-' if row['failure'] else 'n/a'}</td>"
    mark = ' class="best"' if figure["median"] == top else ""
    spread = f'<span class="spread">{number(figure["low"])} to {number(figure["high"])}</span>'
    return f'<td{mark} data-value="{figure["median"]:.6g}">{number(figure["median"])}{spread}</td>'


def _refused(report: Report) -> Iterable[str]:
    if not report["refused"]:
        return
    yield "<h2>Refused</h2><p>Combinations that conflict; a store cannot be opened with them.</p>"
    yield '<div class="scroll"><table><thead><tr><th>combination</th><th class="text">why</th></tr></thead><tbody>'
    for row in report["refused"]:
        yield (
            f"<tr><td>{escape(row['label'])}</td>"
            f'<td class="text" style="white-space:normal">{escape(row["reason"])}</td></tr>'
        )
    yield "</tbody></table></div>"


def _method(report: Report) -> Iterable[str]:
    """Yield the text on how the figures were measured."""
    plan = report["plan"]
    yield (
        "<footer><h2>How it was measured</h2><p>Each combination ran in its own process, in a different order each "
        f"round; each metric for {plan['seconds']:g} s (puts and synced bytes twice as long) after a warm-up over "
        f"multiple segments of {plan['segment_bytes'] >> 20} MiB, with queues and key index enabled. Old segments were "
        "deleted in the warm-up and between measurements, while the clock was stopped, so that there were segments to "
        "recycle; their overwriting in the background continued while the clock ran. Many threads means "
        f"{plan['sync_threads']}. Under policies that do not wait, a durable put is a put and a flush. For synced "
        "bytes, a megabyte was put as a batch and then flushed, repeatedly. The bytes written for a durable put are "
        "those that the process caused to be written to disk per put, including queues and index (write_bytes of "
        "/proc/self/io); a tmpfs has none (n/a). Dispatch lag is the time from the return of a put until its entry is "
        "in queues and index. The open after SIGKILL recovers messages that were not synced, with a warm page cache; "
        "plugins are loaded before it is timed. Memory is the peak of the process's own memory between measurements. "
        "If a metric has few puts, as with syncs, p99.9 is the slowest put or close to it. Figures of a shared or "
        "virtual machine vary; compare only within this page.</p></footer>"
    )
