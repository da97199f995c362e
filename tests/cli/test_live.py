"""A second process finds, follows and counts a stream while its writer is still at work."""

import collections
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.lanes import eventually

import penstock

DATA = Path(
    os.environ.get("PENSTOCK_STREAM", Path(__file__).parents[1] / "data" / "changes.ndjson")
)


def check_followed(path: Path, lines: list[bytes], whole: int, writer: subprocess.Popen[bytes]) -> None:  # fmt: skip
    """Follow the topic to its first `whole` messages, or to its end; check that all of them are found and counted."""
    tags: collections.Counter[str] = collections.Counter()
    with penstock.open(path, read_only=True) as reader:
        followed = []
        for message in reader.scan("changes", follow=True):
            followed.append(message.body)
            tags[message.tag] += 1
            if len(followed) == (whole or len(lines)):
                break
        if whole:
            assert writer.poll() is None, "the writer is still at work"
        # Within a batch the queues are interleaved as they came, so the order is that of the source.
        assert followed == lines[: len(followed)]
        for line in followed[:: max(len(followed) // 50, 1)]:
            commit = json.loads(line)["commit"]
            found = [m.body for m in reader.find(commit, "changes", limit=10_000)]
            assert line in found
        counted = collections.Counter(m.tag for m in reader.scan("changes"))
        assert all(counted[tag] >= count for tag, count in tags.items())


def test_a_stream_is_followed_found_and_counted_while_it_is_written(tmp_path: Path) -> None:
    lines = DATA.read_bytes().splitlines()
    path = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "ingest", str(path), "-", "--format", "ndjson", "--topic", "changes",
         "--key-field", "commit", "--key-field", "path", "--tag-field", "path:suffix", "--queue-by", "module"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def feed() -> None:
        assert process.stdin is not None
        for start in range(0, len(lines), 300):
            process.stdin.write(b"".join(line + b"\n" for line in lines[start : start + 300]))
            process.stdin.flush()
        hold.wait()
        process.stdin.close()

    hold = threading.Event()
    feeder = threading.Thread(target=feed)
    feeder.start()
    # The last batch is stored only when the source ends: all whole ones can be followed before.
    whole = len(lines) // 2000 * 2000 if len(lines) >= 2000 else 0
    try:
        if whole == 0:
            hold.set()
            feeder.join()
            process.wait(60)
        eventually((path / "consumequeue" / "changes").exists, "the first messages are stored")
        check_followed(path, lines, whole, process)
    finally:
        hold.set()
        feeder.join()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()
    assert process.returncode == 0
    with penstock.open(path, read_only=True) as reader:
        queues = reader.topics()["changes"]
        assert sum(reader.max_offset("changes", q) for q in queues) == len(lines)
        assert [m.body for m in reader.scan("changes")] == lines
        assert not list(reader.verify())
