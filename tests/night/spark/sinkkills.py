"""A running stream whose processes are killed, again and again.

A worker that is armed kills itself (SIGKILL) instead of its n-th call that changes the disk, or at a random moment; whole
drivers are killed from outside, Java and all.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

import penstock
from penstock.errors import StoreLockedError
from penstock.files import Files
from penstock.testing.faults import FaultyFiles
from penstock_spark.sink.commit import Ledger
from penstock_spark.sink.writer import PenstockStreamWriter, make_stream_writer
from penstock_spark.source.source import PenstockSource
from penstock_spark.stores import is_dataset, shards_of

ROOT = Path(__file__).parents[3]
TOPIC, QUEUES, LINES = "killed", 3, 40
SMALL = {
    "set.geometry.segment_bytes": "65536", "set.geometry.queue_entries": "500",
    "set.geometry.index_slots": "200", "set.geometry.index_entries": "1500",
}  # fmt: skip
SETTINGS: dict[str, Any] = {name.removeprefix("set."): int(text) for name, text in SMALL.items()}
# How many calls a part makes, about.
CALLS = {"task": 12, "commit": 115}


class Trap:
    """A folder that arms workers: of those that find it armed, one dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.armed, self.sprung = folder / "armed", folder / "sprung"

    def arm(self, chance: random.Random, step: str = "") -> None:
        """Set it."""
        self.disarm()
        step = step or chance.choice(("task", "commit", "commit", "commit"))
        how: dict[str, Any] = {"step": step, "call": chance.randint(1, CALLS[step])}
        if chance.random() < 0.4:
            how = {"step": step, "after_s": chance.uniform(0, 0.02 if step == "task" else 0.25)}
        self.folder.mkdir(exist_ok=True)
        (self.folder / "new").write_text(json.dumps(how))
        (self.folder / "new").rename(self.armed)

    def disarm(self) -> None:
        """Take it away."""
        self.armed.unlink(missing_ok=True)

    def files(self, step: str) -> Files | None:
        """Return files that kill this process, if the trap is for it."""
        try:
            how = json.loads(self.armed.read_text())
        except FileNotFoundError:
            return None
        if how["step"] != step:
            return None
        files, count = FaultyFiles(), 0

        def watch(call: str, path: Path) -> None:
            nonlocal count
            count += 1
            if count == how.get("call"):
                self._kill(f"{step}: {call} {_kind(path)}")

        files.plan.watch = watch
        if "after_s" in how:
            timer = threading.Timer(how["after_s"], self._kill, [f"{step}: some moment"])
            timer.daemon = True
            timer.start()
        return files

    def _kill(self, where: str) -> None:
        try:
            self.armed.rename(self.folder / f"claimed-{os.getpid()}")
        except FileNotFoundError:
            return
        with self.sprung.open("a") as file:
            file.write(where + "\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def deaths(self) -> list[str]:
        """Return where workers died."""
        return self.sprung.read_text().splitlines() if self.sprung.exists() else []


def _kind(path: Path) -> str:
    """Return what a file is, without what is its own."""
    if path.suffix == ".staged":
        return "staged file"
    name = path.name.removesuffix(".new")
    return path.parent.name if name.isdigit() or path.parent.name == "ledger" else name


class KilledWriter(PenstockStreamWriter):
    """The sink's writer, in workers that may die."""

    trap: Trap

    def files(self, step: str) -> Files | None:
        return self.trap.files(step)


class KilledSource(PenstockSource):
    """The data source, with that writer."""

    @classmethod
    def name(cls) -> str:
        return "penstock-killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        options = dict(self.options)
        trap = Trap(Path(options.pop("trap")))
        writer = KilledWriter(make_stream_writer(options, schema, overwrite=overwrite).target)
        writer.trap = trap
        return writer


class Run:
    """One stream from text files to a sink, started again after each death."""

    def __init__(self, folder: Path, shards: int = 0) -> None:
        self.folder, self.shards = folder, shards
        self.root, self.inbox = folder / "store", folder / "inbox"
        self.trap = Trap(folder / "trap")
        self.inbox.mkdir(parents=True, exist_ok=True)

    def add_files(self, count: int) -> None:
        """Give the stream more to do."""
        first = len(list(self.inbox.iterdir()))
        for number in range(first, first + count):
            text = "".join(f"{number}:{line}\n" for line in range(LINES))
            side = self.folder / "side"
            side.write_text(text)
            side.rename(self.inbox / f"{number:06d}.txt")

    def start(self, spark: Any) -> Any:
        """Start the stream over what is there."""
        spark.dataSource.register(KilledSource)
        lines = (
            spark.readStream.format("text").option("maxFilesPerTrigger", "2").load(str(self.inbox))
        )
        shards = {"shards": str(self.shards)} if self.shards else {}
        return (
            lines.selectExpr("value AS key", "value", "substring_index(value, ':', 1) AS tags")
            .writeStream.format("penstock-killed").trigger(availableNow=True)
            .options(topic=TOPIC, partitions=str(QUEUES), trap=str(self.trap.folder), **shards, **SMALL)
            .option("checkpointLocation", str(self.folder / "checkpoint")).start(str(self.root))
        )  # fmt: skip

    def go(self, spark: Any) -> bool:
        """Run to the end of the files; False if something died."""
        query = self.start(spark)
        try:
            query.awaitTermination()
        except Exception as error:
            text = str(error)
            # Anything but a death is a failure of the sink's.
            if not self.trap.armed.exists() and any(word in text for word in ("crashed", "EOF", "exited", "closed", "reset", "Broken")):  # fmt: skip
                return False
            raise
        return True

    def stores(self) -> list[Path]:
        return shards_of(self.root) if is_dataset(self.root) else [self.root]

    def check(self) -> int:
        """Every line is there once, those of a file in order in each queue; returns how many there are."""
        seen: collections.Counter[str] = collections.Counter()
        others: collections.Counter[bytes] = collections.Counter()
        for path in self.stores():
            with penstock.open(path, environ={}, retention=[], **SETTINGS) as store:
                assert not list(store.verify())
                for queue in store.topics().get(TOPIC, []):
                    last: dict[str, int] = {}
                    for message in store.scan(TOPIC, queue=queue):
                        if message.body.startswith(b"other"):
                            others[message.body] += 1
                            continue
                        text = message.body.decode()
                        file, line = text.split(":")
                        assert (message.keys, message.tag) == ((text,), file) or list(
                            message.keys
                        ) == [text]
                        assert int(line) > last.get(file, -1), (
                            f"{text} is out of order in queue {queue}"
                        )
                        last[file] = int(line)
                        seen[text] += 1
        wanted = {
            f"{int(path.stem)}:{line}" for path in self.inbox.iterdir() for line in range(LINES)
        }
        assert set(seen) == wanted, sorted(wanted ^ set(seen))[:10]
        assert set(seen.values()) <= {1}, seen.most_common(5)
        assert set(others.values()) <= {1}, others.most_common(5)
        ledger = Ledger(Files(), self.root)
        assert not ledger.has_decision()
        query = json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"]
        done = [
            int(path.name)
            for path in (self.folder / "checkpoint" / "commits").iterdir()
            if path.name.isdigit()
        ]
        assert ledger.last_batch(query) == max(done)
        return sum(seen.values())


def produce(root: Path) -> None:
    """Append to the stores between the commits, until standard input ends; print how many are acknowledged."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    count = 0
    while not ended.wait(0.03):
        for path in shards_of(root) if is_dataset(root) else [root]:
            if not (path / "commitlog").exists():
                continue
            with suppress(StoreLockedError), penstock.open(path, environ={}, **SETTINGS) as store:
                for _ in range(3):
                    store.put(TOPIC, b"other %d" % count, queue=count % QUEUES)
                    count += 1
    print(count, flush=True)


class Producer:
    """Such a process."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.night.spark.sinkkills", "--produce", str(root)], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stop(self) -> int:
        """End it; returns how many messages it put."""
        out, _ = self._process.communicate(timeout=60)
        return int(out)


def kill_workers(spark: Any, run: Run, kills: int, chance: random.Random) -> None:
    """Let workers die until so many have."""
    while len(run.trap.deaths()) < kills:
        run.add_files(chance.randint(1, 4))
        run.trap.arm(chance)
        run.go(spark)
    run.trap.disarm()
    while not run.go(spark):
        pass


def drive(folder: Path, shards: int) -> None:
    """Run the stream once in a driver of its own; says when it has begun."""
    from penstock_spark import local_session  # noqa: PLC0415 - the others need no session

    spark = local_session("sink-driver", "2", {"spark.sql.shuffle.partitions": "2"})
    query = Run(folder, shards).start(spark)
    print("begun", flush=True)
    query.awaitTermination()


def kill_driver(run: Run, chance: random.Random) -> None:
    """Start a driver, and kill it and its Java; its Python workers find out by themselves."""
    run.add_files(6)
    command = [
        sys.executable,
        "-m",
        "tests.night.spark.sinkkills",
        "--drive",
        str(run.folder),
        "--shards",
        str(run.shards),
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == b"begun\n", line
        time.sleep(chance.uniform(0.5, 6))
        os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Be one of the two processes beside the test: what produces, or a driver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=0)
    parser.add_argument("--produce", type=Path)
    parser.add_argument("--drive", type=Path)
    given = parser.parse_args()
    if given.produce:
        produce(given.produce)
    else:
        drive(given.drive, given.shards)


if __name__ == "__main__":
    # As the module that workers can import, not as the script.
    from tests.night.spark import sinkkills

    sinkkills.main()
