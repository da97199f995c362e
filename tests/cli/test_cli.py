"""The command line as a user runs it: real processes, exit codes, help whose examples work."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run
from tests.conftest import make_restarted
from tests.lanes import at_night, eventually

import penstock
from penstock import Message
from penstock.errors import MessageError
from penstock_tools.cli.root import interrupts_wait, own_verbs

SIZES: dict[str, Any] = {"geometry.segment_bytes": 262144}
DATA = Path(__file__).parents[1] / "data" / "changes.ndjson"
PENSTOCK = [sys.executable, "-m", "penstock"]


@pytest.fixture(autouse=True)
def _as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_GEOMETRY__SEGMENT_BYTES", "262144")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")
    # Whatever the tests run under: a pipe gets what was flushed.
    monkeypatch.setenv("PYTHONUNBUFFERED", "")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The current folder, with a store `data` and sources to ingest, as the help's examples expect it."""
    with penstock.open(tmp_path / "data", environ={}, **SIZES) as store:
        for number in range(30):
            store.put(
                "orders", b"order %d" % number, queue=0, tag=("created", "paid")[number % 2], keys=[f"A-{number}"],
            )  # fmt: skip
        store.commit_offset("billing", "orders", 0, offset=12)
    events = [{"id": f"e{n}", "kind": "click", "n": n} for n in range(20)]
    (tmp_path / "events.ndjson").write_text("".join(json.dumps(e) + "\n" for e in events))
    rows = [{"topic": "orders", "body": f"order {n}"} for n in range(5)]
    (tmp_path / "orders.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "access.log").write_text("GET /\nPOST /x\n\nGET /y\n")
    return tmp_path


@pytest.mark.parametrize(
    "verb",
    [at_night(verb) if verb in ("demo", "matrix", "bench") else verb for verb in own_verbs()],
)
@pytest.mark.usefixtures("place")
def test_every_verbs_help_has_two_examples_that_work(verb: str) -> None:
    examples = re.findall(r"^ *\$ (.*)$", run(verb, "--help").out, re.MULTILINE)
    assert len(examples) == 2, examples
    for example in examples:
        if set(example) & set("|<>"):
            command = example.replace("penstock ", shlex.join(PENSTOCK) + " ")
            subprocess.run(command, shell=True, capture_output=True, timeout=240, check=True)
        else:
            run(*shlex.split(example)[1:]).expect(0)


def test_help_lists_every_verb_and_version_is_told() -> None:
    text = run("--help").out
    assert all(re.search(rf"^  {verb}\b", text, re.MULTILINE) for verb in own_verbs())
    run("--version").expect(0, out=penstock.__version__)


def test_exit_codes(place: Path) -> None:
    put = ("put", "data", "t", "x")
    for line, code in (
        (("find", "data", "orders", "--key", "A-7"), 0), (("find", "data", "orders", "--key", "none"), 1),
        (("read", "data", "none"), 1), (("get", "data", "999999"), 1), (("nonsense",), 2),
        (("put", "data", "a/b", "x"), 2), ((*put, "--set", "flush.use=snyc"), 2), (("stat", "."), 4),
    ):  # fmt: skip
        run(*line).expect(code)
    with penstock.open(place / "data"):
        run(*put, "--set", "flush.use=sync").expect(3, err=f"process {os.getpid()}")
        run("stat", "data").expect(0)
    segment = next((place / "data" / "commitlog").iterdir())
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"order 3")] ^= 1
    segment.write_bytes(raw)
    found = run("verify", "data", "--json")
    assert (found.code, found.rows[0]["part"]) == (1, "log")
    run(*put).expect(5)


def test_a_note_of_verify_is_no_failure(tmp_path: Path) -> None:
    """A queue that a broker restarted at 0 is worth a line; nothing is wrong."""
    make_restarted(tmp_path / "data", "orders", **SIZES)
    found = run("verify", "data", "--deep")
    assert (found.code, found.out.count("\n")) == (0, 1)
    assert found.out.startswith("note on the log: ")
    assert "a new generation of the queue" in found.out
    assert "82 records, 0 findings, 1 note: everything agrees" in found.err
    (line,) = run("verify", "data", "--json", "--quiet").rows
    assert (line["is_note"], line["part"], line["what_now"]) == (True, "log", "")
    repaired = run("repair", "data", "--json")
    assert (repaired.code, repaired.rows[-1]["standing"]) == (0, 0)
    # What is wrong counts beside it.
    queue = next((tmp_path / "data" / "consumequeue" / "kept" / "0").iterdir())
    raw = bytearray(queue.read_bytes())
    raw[19] ^= 1
    queue.write_bytes(raw)
    found = run("verify", "data", "--json")
    assert (found.code, [line["is_note"] for line in found.rows]) == (1, [False, True])
    assert "82 records, 1 finding, 1 note\n" in found.err


def test_a_closed_pipe_is_quiet(place: Path) -> None:
    command = f"{shlex.join(PENSTOCK)} read data orders --limit 1000000 | head -1; exit ${{PIPESTATUS[0]}}"
    with penstock.open(place / "data") as store:
        store.put_many([Message("orders", b"x" * 500, queue=0)] * 3000)
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.usefixtures("place")
def test_json_is_for_programs() -> None:
    (message,) = run("find", "data", "orders", "--key", "A-7", "--json").rows
    names = ("topic", "body", "tag", "keys")
    assert [message[name] for name in names] == ["orders", "order 7", "paid", ["A-7"]]
    assert run("get", "data", message["message_id"], "--json").rows == [message]
    (stat,) = run("stat", "data", "--json").rows
    assert (stat["messages"], stat["topics"], stat["closed_cleanly"]) == (30, 1, True)
    assert run("topics", "data", "--json").rows == [
        {"topic": "orders", "queues": 1, "messages": 30}
    ]
    assert run("groups", "data", "--json").rows == [
        {"group": "billing", "topic": "orders", "queue": 0, "offset": 12, "lag": 18}
    ]
    tagged = run("read", "data", "orders", "--tag", "paid", "--limit", "3", "--json").rows
    assert [m["body"] for m in tagged] == ["order 1", "order 3", "order 5"]


def test_the_change_stream_goes_in_and_comes_out_unchanged(tmp_path: Path) -> None:
    """Real file changes of a public repository, its odd paths and nulls among them."""
    source = DATA.read_bytes().splitlines()
    by_topic: dict[str, list[bytes]] = {}
    for line in source:
        by_topic.setdefault("changes-" + json.loads(line)["module"], []).append(line)
    options = ("--key-field", "commit", "--key-field", "path", "--tag-field", "path:suffix", "--queue-by", "commit")  # fmt: skip
    done = run("ingest", "changes", "-", "--format", "ndjson", "--topic", "changes-", "--topic-field", "module",
               *options, "--json", given=DATA.read_bytes())  # fmt: skip
    done.expect(0)
    assert done.rows[0]["stored"] == len(source)
    with penstock.open(tmp_path / "changes", read_only=True) as store:
        assert max(len(queues) for queues in store.topics().values()) > 1
        # Over all queues in the order of the source.
        assert {t: [m.body for m in store.scan(t)] for t in store.topics()} == by_topic
        for topic, lines in by_topic.items():
            tags = [Path(json.loads(line)["path"]).suffix.lstrip(".") for line in lines]
            assert [m.tag for m in store.scan(topic)] == tags
        for line in source[::9]:
            fields = json.loads(line)
            for key in (fields["commit"], fields["path"]):
                found = store.find(key, "changes-" + fields["module"], limit=5000)
                assert line in [m.body for m in found]
        assert not list(store.verify())


def test_csv_parquet_and_pipes_go_in(tmp_path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - extras
    from pyarrow import parquet  # noqa: PLC0415

    (tmp_path / "rows.csv").write_text('id,kind\n1,a\n2,"b, c"\n')
    table = pa.table({"id": [1, 2, 3], "kind": ["x", None, "z"]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    run("ingest", "s", "rows.csv", "--topic", "csv", "--key-field", "id").expect(0)
    run("ingest", "s", "rows.parquet", "--topic", "parquet", "--tag-field", "kind").expect(0)
    run("ingest", "s", "-", "--topic", "lines", given=b"one\ntwo\n").expect(0)
    with penstock.open(tmp_path / "s", read_only=True) as store:
        assert [json.loads(m.body) for m in store.scan("csv")][1] == {"id": "2", "kind": "b, c"}
        assert [m.tag for m in store.scan("parquet")] == ["x", "", "z"]
        assert [m.body for m in store.scan("lines")] == [b"one", b"two"]


def test_bad_rows_stop_or_are_skipped(tmp_path: Path) -> None:
    rows = b'{"t":"good"}\nno json\n{"t":"a/b"}\n{"t":"good"}\n'
    options = ("-", "--format", "ndjson", "--topic-field", "t")
    stopped = run("ingest", "s", *options, given=rows)
    stopped.expect(2, err="line 2: the line is not valid JSON")
    assert "--skip-bad" in stopped.err
    run("ingest", "s2", *options, "--skip-bad", "--json", given=rows).expect(0)
    with penstock.open(tmp_path / "s2", read_only=True) as store:
        assert list(store.topics()) == ["good"]


def test_ctrl_c_stops_an_ingest_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PENSTOCK, "ingest", "s", "-", "--topic", "t"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"line\n" * 5000)
    process.stdin.flush()
    eventually((tmp_path / "s" / "commitlog").exists)

    def stored_so_far() -> int:
        with penstock.open(tmp_path / "s", read_only=True) as store:
            return sum(store.max_offset("t", n) for n in store.topics().get("t", []))

    eventually(lambda: stored_so_far() >= 2000)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    stored = int(re.search(rb"interrupted after ([\d,]+) rows", errors)[1].replace(b",", b""))  # type: ignore[index] # it is there
    with penstock.open(tmp_path / "s") as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert sum(store.max_offset("t", n) for n in store.topics()["t"]) == stored >= 2000


def test_an_interrupt_waits_for_a_step_and_its_count() -> None:
    """One between a put and its count once made `ingest` say 2,000 where 4,000 were stored."""
    steps, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        steps.append("put")
        steps.append("counted")
    assert steps == ["put", "counted"]
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), suppress(MessageError), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        raise MessageError("refused")
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one does not wait")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_tail_follows_a_writer_in_another_process(place: Path) -> None:
    process = subprocess.Popen(
        [*PENSTOCK, "tail", "data", "orders", "-f", "--limit", "1", "--json"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["body"] == "order 29"
        with penstock.open(place / "data") as store:
            for number in range(30, 35):
                store.put("orders", b"order %d" % number, queue=0)
                store.topics()
                assert json.loads(process.stdout.readline())["body"] == f"order {number}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()
    assert process.returncode == 130


def test_tail_shows_what_is_put_while_it_starts_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left out what was put after it had read the newest messages, and before it began to follow."""
    scan = penstock.Store.scan

    def busy(store: penstock.Store, topic: str, **how: Any) -> Iterator[penstock.StoredMessage]:
        if how.get("follow"):
            found = scan(store, topic, **how)
            writer.put("orders", b"last", queue=1)
            for message in found:
                yield message
                if message.body == b"last":
                    return
        writer.put("orders", b"before", queue=0)
        yield from [*scan(store, topic, **how)]
        writer.put("orders", b"after", queue=0)

    with penstock.open(place / "data") as writer:
        writer.put("orders", b"other", queue=1)
    with penstock.open(place / "data") as writer:
        monkeypatch.setattr(penstock.Store, "scan", busy)
        done = run("tail", "data", "orders", "-f", "--limit", "3", "--json")
    bodies = [row["body"] for row in done.rows]
    assert bodies[:3] == ["order 28", "order 29", "other"]
    assert bodies[3:] == ["before", "after", "before", "after", "last"]


WITHOUT_SPARK = """
import sys
from pathlib import Path
sys.modules["pyspark.sql"] = None
from penstock_tools.cli.verbs.demo import Demo
Demo(Path(sys.argv[1]), 1).spark()
"""


def test_the_demo_says_how_to_go_without_spark(tmp_path: Path) -> None:
    """The advice was only given if the pipeline itself was missing, which is installed with Penstock."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path)], capture_output=True, check=False
    )
    assert b"the Spark part (or use --no-spark) needs pyspark" in done.stderr
