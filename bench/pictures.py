"""The plots of the performance page, drawn from one run's JSON. Titles say which direction is better.

They are as wide as a phone screen, with panels one below the other, and dark if the reader's system is.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.engines import ENGINES
from bench.results import Result, median

# One colour and marker per engine, in every plot.
LOOKS: dict[str, tuple[str, str]] = {
    "penstock": ("#3b7dd8", "o"), "rocketmq": ("#d95f02", "s"), "sqlite": ("#7a7a7a", "^"),
    "lmdb": ("#2a9d57", "D"), "rocksdb": ("#8e44ad", "v"), "plain": ("#b0b0b0", "x"),
    "pwrite": ("#d0d0d0", "+"),
}  # fmt: skip
NAMES = {
    "penstock": "Penstock", "rocketmq": "RocketMQ", "sqlite": "SQLite", "lmdb": "LMDB",
    "rocksdb": "RocksDB", "plain": "plain file", "pwrite": "pwrite",
}  # fmt: skip
SIZES = ("128 B", "1 KiB", "16 KiB")
THREADS = (1, 4, 16, 64)
# Colours of background and text; the second of each is for dark systems.
PAPER, INK, FAINT = ("#ffffff", "#14171c"), ("#1a1c20", "#e4e6ea"), ("#d5d8dc", "#3a3f47")
WIDTH = 4.2
PARTS = {
    "50": "50 %",
    "90": "90 %",
    "99": "99 %",
    "99.9": "99.9 %",
    "99.99": "99.99 %",
    "100": "all",
}


def draw(result: Result, folder: Path, suffix: str = "svg") -> list[Path]:
    """Draw all plots that the run has figures for; return their files."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

    mpl.use("agg" if suffix == "png" else "svg")
    from matplotlib import pyplot  # noqa: PLC0415 - as above

    # With a fixed hash salt, the same figures give the same file.
    inked = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK[0]
    )
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.size": 9,
                            "axes.spines.top": False, "axes.spines.right": False, **inked,
                            "figure.facecolor": PAPER[0], "savefig.facecolor": PAPER[0],
                            "axes.facecolor": PAPER[0], "grid.color": FAINT[0]})  # fmt: skip
    made = []
    drawings: dict[str, Callable[[Result, Any], Any]] = {
        "goals": _goals, "sizes": _sizes, "threads": _threads, "latency": _latency,
        "recovery": _recovery, "memory": _memory,
    }  # fmt: skip
    for name, drawing in drawings.items():
        figure = drawing(result, pyplot)
        if figure is None:
            continue
        path = folder / f"performance-{name}.{suffix}"
        figure.savefig(path, metadata={"Date": None} if suffix == "svg" else None, dpi=110,
                       bbox_inches="tight")  # fmt: skip
        pyplot.close(figure)
        if suffix == "svg":
            path.write_text(_with_night(path.read_text()))
        made.append(path)
    return made


def _with_night(drawing: str) -> str:
    """Add the dark colours to a drawing, for dark systems."""
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in (PAPER, INK, FAINT) for what in ("fill", "stroke")
    )  # fmt: skip
    head, opened, rest = drawing.partition("<defs>")
    return f"{head}<style>@media (prefers-color-scheme: dark){{{rules}}}</style>{opened}{rest}"


def _look(engine: str) -> dict[str, Any]:
    colour, mark = LOOKS[ENGINES[engine].kind]
    # The element in front is drawn last.
    front = 3 if engine.startswith("penstock") else 2
    return {"color": colour, "marker": mark, "zorder": front}


def _name(engine: str) -> str:
    return NAMES[ENGINES[engine].kind]


def _goals(result: Result, pyplot: Any) -> Any:
    """Plot each goal: the ratio divided by its target, with its spread."""
    rows = [
        goal for goal in result["goals"]
        if goal["median"] is not None and not goal["beside"] and not goal["is_limit"]
    ]  # fmt: skip
    if not rows:
        return None
    figure, axis = pyplot.subplots(figsize=(WIDTH, 0.36 * len(rows) + 1.2))
    for place, goal in enumerate(reversed(rows)):
        least = goal["least"]
        is_met = goal["median"] >= least
        colour = LOOKS["penstock"][0] if is_met else "#d1495b"
        spread = [goal["low"] / least, goal["high"] / least]
        axis.plot(spread, [place] * 2, color=colour, alpha=0.45, lw=4)
        axis.plot(goal["median"] / least, place, "o" if is_met else "X", color=colour)
        words = f"{goal['work']} / {goal['against']}: {goal['median']:,.2f} of {least:g}".replace(
            "`", ""
        )
        axis.annotate(words, (0, place + 0.24), fontsize=7.5, va="bottom",
                      fontweight="bold" if goal["must"] else "normal",
                      xycoords=("axes fraction", "data"))  # fmt: skip
    axis.axvline(1, color=INK[0], lw=1)
    axis.set_xscale("log")
    # By default a log axis adds minor labels that overlap.
    axis.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "the goal", "3", "10"])
    axis.minorticks_off()
    axis.set_xlim(
        0.8 * min(goal["low"] / goal["least"] for goal in rows),
        1.25 * max(goal["high"] / goal["least"] for goal in rows),
    )
    axis.set_ylim(-0.7, len(rows) - 0.1)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(
        "ratio divided by its goal: right of the line the goal is reached\n(bold: required; bars: spread of the rounds)"
    )
    axis.set_title("Penstock and its goals", fontsize=10)
    axis.grid(axis="x")
    return figure


def _panels(pyplot: Any, count: int) -> tuple[Any, Sequence[Any]]:
    figure, axes = pyplot.subplots(count, 1, figsize=(WIDTH, 2.9 * count), sharey=True)
    return figure, axes if count > 1 else [axes]


def _line(axis: Any, engine: str, points: Sequence[tuple[Any, float | None]]) -> bool:
    known = [(at, value) for at, value in points if value is not None]
    if known:
        axis.plot(*zip(*known, strict=True), label=_name(engine), **_look(engine))
    return bool(known)


def _rate(result: Result, work: str, engine: str) -> float | None:
    took = median(result, work, engine)
    return 1e9 / took if took else None


def _sizes(result: Result, pyplot: Any) -> Any:
    """Messages a second by body size: single, batches, columns."""
    engines = ("plain", "sqlite", "rocksdb", "lmdb", "rocketmq", "penstock")
    kinds = {
        "one by one": ("put {size}", engines),
        "in batches of 1,000 (16 KiB: 100)": ("put_many {many} x {size}", engines),
        "as Arrow tables of 10,000 (16 KiB: 1,000)": ("put_arrow {columns} x {size}", ("pwrite", "penstock")),
    }  # fmt: skip
    figure, axes = _panels(pyplot, len(kinds))
    drawn = False
    for axis, (title, (work, names)) in zip(axes, kinds.items(), strict=True):
        for engine in names:
            points = [
                (size, _rate(result, _work(work, size), engine))
                for size in SIZES if _any(result, _work(work, size))
            ]  # fmt: skip
            drawn |= _line(axis, engine, points)
        _finish(axis, title, "size of a body", _counted)
    for axis in axes:
        axis.set_ylabel("messages a second, in the queues\n(higher is better)")
    _dress(figure, axes, "Putting, without waiting for the disk, one thread")
    return figure if drawn else None


def _work(pattern: str, size: str) -> str:
    many = 100 if size == "16 KiB" else 1000
    return pattern.format(size=size, many=many, columns=10 * many)


def _any(result: Result, work: str) -> bool:
    return bool(result["figures"].get(work))


def _counted(value: float) -> str:
    for unit, words in ((1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{words}"
    return f"{value:g}"


def _lasting(microseconds: float) -> str:
    for unit, words in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:g} {words}"
    return f"{microseconds:g} us"


def _dress(figure: Any, axes: Sequence[Any], title: str) -> None:
    """Give a row of panels a title, and one legend for all below them."""
    named: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    if named:
        figure.legend(named.values(), named.keys(), loc="upper center", ncols=min(len(named), 3),
                      frameon=False, bbox_to_anchor=(0.5, 0.01))  # fmt: skip


def _finish(axis: Any, title: str, below: str, words: Callable[[float], str]) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: words(value))
    axis.yaxis.set_minor_formatter(lambda *_: "")
    axis.tick_params(labelleft=True)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(below)
    axis.grid()


def _threads(result: Result, pyplot: Any) -> Any:
    """Messages a second by threads: async, and sync."""
    kinds = {
        "async, 128 B": ("threads {threads} x 128 B", ("rocketmq", "penstock")),
        "sync, 1 KiB: each put waits for the disk": (
            "sync {threads} threads, 1 KiB", ("rocketmq-sync", "penstock-sync")
        ),
    }  # fmt: skip
    figure, axes = _panels(pyplot, len(kinds))
    drawn = False
    for axis, (title, (work, names)) in zip(axes, kinds.items(), strict=True):
        for engine in names:
            points = [(str(n), _rate(result, work.format(threads=n), engine)) for n in THREADS]
            drawn |= _line(axis, engine, points)
        _finish(axis, title, "threads that put, all in one process", _counted)
    for axis in axes:
        axis.set_ylabel("messages a second\n(higher is better)")
    _dress(figure, axes, "Putting one by one from several threads")
    return figure if drawn else None


def _latency(result: Result, pyplot: Any) -> Any:
    """Plot how long a single put takes, as a cumulative distribution."""
    kinds = {
        "latency of a put, 128 B": "one put, 128 B, async",
        "lag, put to readable in the same process": "from put to readable,\nsame process",
        "tail, put to a follower in another process": "from put to a follower\nin another process",
    }
    there = {work: title for work, title in kinds.items() if result["latencies"].get(work)}
    if not there:
        return None
    figure, axes = _panels(pyplot, len(there))
    for axis, (work, title) in zip(axes, there.items(), strict=True):
        for engine, several in sorted(result["latencies"][work].items(), reverse=True):
            points = [
                (words, sorted(one[part] for one in several)[len(several) // 2] / 1000)
                for part, words in PARTS.items()
            ]
            _line(axis, engine, points)
        _finish(axis, title, "this part of all takes no longer", _lasting)
        axis.tick_params(axis="x", labelrotation=45)
    for axis in axes:
        axis.set_ylabel("time (lower is better)")
    _dress(figure, axes, "How long one message takes")
    return figure


def _recovery(result: Result, pyplot: Any) -> Any:
    """Plot recovery, open and close compared with RocketMQ."""
    kinds = {
        "recovery of a killed 1 GiB store": "recover 1 GiB\nafter a kill",
        "open a clean 1 GiB store": "open 1 GiB\nafter a clean close",
        "close a busy store, 1 KiB": "close\na busy store",
        "queues 1,000, open": "open a store of\n1,000 queues",
        "queues 1,000, close": "close a store of\n1,000 queues",
    }
    there = {work: title for work, title in kinds.items() if _any(result, work)}
    return _bars(
        result, pyplot, there, "time (lower is better;\nabove the bars: ms)", "A store's life"
    )


def _memory(result: Result, pyplot: Any) -> Any:
    """Plot memory by number of queues."""
    kinds = {f"memory of {n:,} queues": f"{n:,} queue{'s' * (n > 1)}" for n in (1, 1000, 20_000)}
    there = {work: title for work, title in kinds.items() if _any(result, work)}
    return _bars(result, pyplot, there, "MB besides mapped files\n(lower is better)",
                 "Memory of the whole process, a message in each queue", is_log=False)  # fmt: skip


def _bars(
    result: Result, pyplot: Any, works: dict[str, str], unit: str, title: str, *, is_log: bool = True
) -> Any:  # fmt: skip
    if not works:
        return None
    figure, axis = pyplot.subplots(figsize=(WIDTH, 3.4))
    for side, engine in enumerate(("penstock", "rocketmq")):
        values = [median(result, work, engine) for work in works]
        places = [at + 0.38 * (side - 0.5) for at, value in enumerate(values) if value]
        known = [value for value in values if value]
        bars = axis.bar(places, known, 0.36, label=_name(engine), color=LOOKS[engine][0])
        axis.bar_label(bars, [f"{value:,.0f}" for value in known], fontsize=8)
    if is_log:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: _lasting(1000 * value))
    axis.set_xticks(range(len(works)), list(works.values()), fontsize=7)
    axis.set_ylabel(unit)
    axis.margins(y=0.12)
    _dress(figure, [axis], title)
    return figure
