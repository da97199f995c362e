"""The verb `demo`: stores, reads, counts, crashes and recovers on real text, then shows a table of the steps."""

import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import penstock
from penstock.errors import MissingExtraError
from penstock.store.store import Store
from penstock_tools.cli.output import Bar, note, size_text, table
from penstock_tools.cli.root import examples

_ROWS = 20_000
_CODE_ENDINGS = frozenset({".py", ".pyi"})
_TEXT_ENDINGS = _CODE_ENDINGS | {
    ".txt",
    ".rst",
    ".md",
    ".cfg",
    ".toml",
    ".h",
    ".json",
    ".csv",
    ".xml",
}
_KINDS = (b"#", b"def ", b"class ", b"import ", b"from ", b"return", b"if ", b"for ", b"@")

# A writer that is killed while it puts messages; each line is an acknowledged message. No retention: see `_open`.
_VICTIM = """
import sys, penstock
store = penstock.open(sys.argv[1], flush="sync", retention=[])
number = 0
while True:
    store.put("victim", b"message %d" % number, keys=[str(number)])
    print(number, flush=True)
    number += 1
"""


@click.command(
    "demo",
    epilog=examples(
        "penstock demo --files 40 --no-spark",
        "penstock demo --files 20 --no-spark --path demo-small",
    ),
)
@click.option(
    "--path",
    default="demo-data",
    show_default=True,
    help="The demo's folder; a folder of an earlier demo is emptied first.",
)
@click.option(
    "--files",
    type=click.IntRange(1),
    default=None,
    help="The maximum number of source files; without it, all.",
)
@click.option("--no-spark", is_flag=True, help="Skip the step that needs Spark.")
def command(path: str, files: int | None, no_spark: bool) -> int:
    """Store this Python's standard library line by line, look up messages, count with Spark, crash, and recover."""
    if find_spec("pyarrow") is None:
        raise MissingExtraError("pyarrow", "arrow" if no_spark else "spark", "penstock demo")
    root = Path(path)
    if root.exists() and not (root / "penstock-demo").exists():
        raise click.UsageError(
            f"{path} exists and is not the folder of an earlier demo; nothing was changed. Give another --path"
        )
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / "penstock-demo").touch()
    done = Demo(root, files)
    done.ingest()
    done.look_up()
    if not no_spark:
        done.spark()
    done.crash()
    table("What was done, and how fast", ("step", "amount", "time", "rate"), done.rows)
    note(f"explore it: penstock stat {root / 'store'}; penstock read {root / 'store'} asyncio")
    return 0


class Demo:
    """The steps of the demo and the rows of its table."""

    def __init__(self, root: Path, files: int | None) -> None:
        self._path = root / "store"
        self._parquet = root / "counts.parquet"
        self._files = files
        self.rows: list[tuple[str, str, str, str]] = []

    def _time_step(self, step: str, unit: str, job: Callable[[], int]) -> int:
        began = time.perf_counter()
        count = job()
        took = time.perf_counter() - began
        rate = f"{count / took:,.0f} {unit}/s"
        self.rows.append((step, f"{count:,} {unit}", f"{took:.2f} s", rate))
        note(f"{step}: {count:,} {unit} in {took:.2f} s")
        return count

    def ingest(self) -> None:
        """Store every line of the standard library: topic by package, key by file, tag by kind of line."""
        home = Path(sysconfig.get_paths()["stdlib"])
        sources = sorted(
            path
            for path in home.rglob("*")
            if path.suffix in _TEXT_ENDINGS and path.is_file() and "site-packages" not in path.parts
        )[: self._files]
        total = sum(path.stat().st_size for path in sources)
        note(f"the standard library: {len(sources):,} files, {size_text(total)}")
        with _open(self._path) as store:
            self._time_step(
                "put_arrow, with queues and index",
                "messages",
                lambda: _ingest(store, home, sources, total),
            )

    def look_up(self) -> None:
        """Look up messages by key, by tag and by time in the store opened read-only, as another process would."""
        with penstock.open(self._path, read_only=True) as store:
            topic = "json" if "json" in store.topics() else next(iter(store.topics()))
            first = next(store.scan(topic))
            key = first.keys[0]
            for message in store.find(key, topic, limit=2):
                note(f"  by key {key}: {message.body[:60]!r}")
            for message in store.read(topic, 0, 0, 2, "def").messages:
                note(f"  by tag def: {message.body.strip()[:60]!r}")
            at = store.offset_at(topic, 0, first.store_time_ms / 1000)
            note(
                f"  by time: the first message of {topic} at or after {first.store_time_ms} ms has offset {at}"
            )

    def spark(self) -> None:
        """Count messages per topic and tag with Spark, and write the counts as Parquet."""
        spark = _spark_session()
        try:
            self._time_step(
                "Spark: count by topic and tag, to Parquet", "messages", lambda: self._count(spark)
            )
        finally:
            spark.stop()

    def _count(self, spark: Any) -> int:
        """Write the counts per topic and tag as Parquet, and return their sum."""
        lines = (
            spark.read.format("penstock").schema("topic string, tags string").load(str(self._path))
        )
        counts = lines.groupBy("topic", "tags").count()
        counts.write.mode("overwrite").parquet(str(self._parquet))
        top = spark.read.parquet(str(self._parquet)).orderBy("count", ascending=False).collect()
        table(
            "Spark's counts, from Parquet",
            ("topic", "kind", "lines"),
            [tuple(row) for row in top[:8]],
        )
        return sum(row["count"] for row in top)

    def crash(self) -> None:
        """Kill a writer that waits for each sync, then check that every acknowledged message is in the store."""
        command, last = [sys.executable, "-c", _VICTIM, str(self._path)], -1
        with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            until = time.monotonic() + 2
            try:
                while time.monotonic() < until and (line := victim.stdout.readline()):
                    last = int(line)
            finally:
                victim.kill()
            rest = victim.stdout.read().split(b"\n")[:-1]
        last = max([last, *(int(line) for line in rest if line)])
        self._time_step("recover after kill -9", "messages", lambda: _recover(self._path, last))


def _open(path: Path) -> Store:
    """Open the demo's store for writing, without retention, which would delete what is counted on a full disk."""
    return penstock.open(path, retention=[])


def _spark_session() -> Any:
    """Return a local session; the only import of the pipeline by the kernel, and only if the Spark part is run."""
    try:
        from penstock_spark import local_session  # noqa: PLC0415 - an extra

        return local_session("penstock-demo", "2", {"spark.sql.shuffle.partitions": "2"})
    except (ImportError, MissingExtraError) as error:
        lacking = error.package if isinstance(error, MissingExtraError) else "pyspark"
        raise MissingExtraError(lacking, "spark", "the Spark part (or use --no-spark)") from error


def _ingest(store: Store, home: Path, sources: list[Path], total: int) -> int:
    """Store every line of the files; returns the number of messages."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    count = done = 0
    names = ("topic", "body", "keys", "tag")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    with Bar("ingest", total, "messages", quiet=False) as bar:
        for path in sources:
            for row in _lines(home, path):
                for name, value in zip(names, row, strict=True):
                    columns[name].append(value)
            done += path.stat().st_size
            if len(columns["topic"]) >= _ROWS or path is sources[-1]:
                table_of = pa.table({"topic": columns["topic"], "body": pa.array(columns["body"], pa.binary()),
                                     "keys": columns["keys"], "tag": columns["tag"]})  # fmt: skip
                count += store.put_arrow(table_of).num_rows
                columns = {name: [] for name in names}
                bar.set(done, count)
    return count


def _lines(home: Path, path: Path) -> Iterator[tuple[str, bytes, str, str]]:
    inner = path.relative_to(home)
    topic = inner.parts[0].removesuffix(path.suffix) if len(inner.parts) == 1 else inner.parts[0]
    key = inner.as_posix()
    ending = path.suffix.removeprefix(".")
    for line in path.read_bytes().splitlines():
        yield topic, line, key, _kind(line) if path.suffix in _CODE_ENDINGS else ending


def _kind(line: bytes) -> str:
    """Return the tag of a line of code: the kind of statement it begins with."""
    text = line.lstrip()
    if not text:
        return "blank"
    for word in _KINDS:
        if text.startswith(word):
            return (
                "comment"
                if word == b"#"
                else "decorator"
                if word == b"@"
                else word.decode().strip()
            )
    return "code"


def _recover(path: Path, last: int) -> int:
    with _open(path) as store:
        report = store.recovery
        assert report is not None
        kept = sum(store.max_offset("victim", queue) for queue in store.topics().get("victim", ()))
        note(
            f"  acknowledged before the kill: {last + 1:,} messages; in the store: {kept:,}; state at open: "
            f"{report.state}"
        )
        if kept < last + 1:
            raise click.ClickException("an acknowledged message was lost")
        return kept
