"""The command line as a user runs it: real processes, exit codes, help whose examples work."""

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli import commands
from tests.conftest import make_restarted
from tests.lanes import at_night, eventually

import penstock
from penstock import Message
from penstock.errors import MessageError
from penstock_tools.cli.root import cli, interrupts_wait, own_verbs

SIZES: dict[str, Any] = {"geometry.segment_bytes": 262144}
DATA = Path(__file__).parents[1] / "data" / "changes.ndjson"
PENSTOCK = [sys.executable, "-m", "penstock"]
ENVIRONMENT = {
    **os.environ,
    "PENSTOCK_GEOMETRY__SEGMENT_BYTES": "262144",
    "COLUMNS": "120",
    "TERM": "dumb",
    # As in a shell, whatever the tests run under: a pipe gets what was flushed.
    "PYTHONUNBUFFERED": "",
}


def run(*arguments: str, cwd: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return commands.run(*arguments, cwd=cwd, given=given, environ=ENVIRONMENT)


def lines(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a store `data` and sources to ingest, as the help's examples expect it."""
    with penstock.open(tmp_path / "data", environ={}, **SIZES) as store:
        for number in range(30):
            store.put(
                "orders",
                b"order %d" % number,
                queue=0,
                tag=("created", "paid")[number % 2],
                keys=[f"A-{number}"],
            )
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
def test_every_verbs_help_has_two_examples_that_work(verb: str, place: Path) -> None:
    # In this process: that a real one prints it, `test_help_lists_every_verb_and_version_is_told` says.
    help_text = CliRunner(env=ENVIRONMENT).invoke(cli, [verb, "--help"]).output
    examples = re.findall(r"^ *\$ (.*)$", help_text, re.MULTILINE)
    assert len(examples) == 2, help_text
    for example in examples:
        done = (
            run_in_shell(example, place)
            if set(example) & set("|<>")
            else run(*shlex.split(example)[1:], cwd=place)
        )
        assert done.returncode == 0, (example, done.stderr.decode())


def run_in_shell(example: str, place: Path) -> subprocess.CompletedProcess[bytes]:
    command = example.replace("penstock ", shlex.join(PENSTOCK) + " ")
    return subprocess.run(
        command, shell=True, cwd=place, env=ENVIRONMENT, capture_output=True, timeout=240, check=False,
    )  # fmt: skip


def test_help_lists_every_verb_and_version_is_told(place: Path) -> None:
    text = run("--help", cwd=place).stdout.decode()
    assert all(re.search(rf"^  {verb}\b", text, re.MULTILINE) for verb in own_verbs())
    assert penstock.__version__ in run("--version", cwd=place).stdout.decode()
    assert cli.name == "cli"


def test_exit_codes(place: Path) -> None:
    assert run("find", "data", "orders", "--key", "A-7", cwd=place).returncode == 0
    assert run("find", "data", "orders", "--key", "none", cwd=place).returncode == 1
    assert run("read", "data", "none", cwd=place).returncode == 1
    assert run("get", "data", "999999", cwd=place).returncode == 1
    assert run("nonsense", cwd=place).returncode == 2
    assert run("put", "data", "a/b", "x", cwd=place).returncode == 2
    assert run("put", "data", "t", "x", "--set", "flush.use=snyc", cwd=place).returncode == 2
    with penstock.open(place / "data"):
        in_use = run("put", "data", "t", "x", "--set", "flush.use=sync", cwd=place)
        assert in_use.returncode == 3
        assert f"process {os.getpid()}".encode() in in_use.stderr
        assert run("stat", "data", cwd=place).returncode == 0
    assert run("stat", ".", cwd=place).returncode == 4
    segment = next((place / "data" / "commitlog").iterdir())
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"order 3")] ^= 1
    segment.write_bytes(raw)
    found = run("verify", "data", "--json", cwd=place)
    assert found.returncode == 1
    assert lines(found)[0]["part"] == "log"
    assert run("put", "data", "t", "x", cwd=place).returncode == 5


def test_a_note_of_verify_is_no_failure(tmp_path: Path) -> None:
    """A queue that a broker restarted at 0 is worth a line; nothing is wrong."""
    make_restarted(tmp_path / "data", "orders", **SIZES)
    found = run("verify", "data", "--deep", cwd=tmp_path)
    shown, told = found.stdout.decode(), found.stderr.decode()
    assert (found.returncode, shown.count("\n")) == (0, 1)
    assert shown.startswith("note on the log: ")
    assert "a new generation of the queue" in shown
    assert "82 records, 0 findings, 1 note: everything agrees" in told
    (line,) = lines(run("verify", "data", "--json", "--quiet", cwd=tmp_path))
    assert (line["is_note"], line["part"], line["what_now"]) == (True, "log", "")
    repaired = run("repair", "data", "--json", cwd=tmp_path)
    assert (repaired.returncode, lines(repaired)[-1]["standing"]) == (0, 0)
    # What is wrong counts beside it.
    queue = next((tmp_path / "data" / "consumequeue" / "kept" / "0").iterdir())
    raw = bytearray(queue.read_bytes())
    raw[19] ^= 1
    queue.write_bytes(raw)
    found = run("verify", "data", "--json", cwd=tmp_path)
    assert (found.returncode, [line["is_note"] for line in lines(found)]) == (1, [False, True])
    assert b"82 records, 1 finding, 1 note\n" in found.stderr


def test_a_closed_pipe_is_quiet(place: Path) -> None:
    command = f"{shlex.join(PENSTOCK)} read data orders --limit 1000000 | head -1; exit ${{PIPESTATUS[0]}}"
    with penstock.open(place / "data") as store:
        store.put_many([Message("orders", b"x" * 500, queue=0)] * 3000)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=place,
        capture_output=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 141
    assert done.stderr == b""


def test_json_is_for_programs(place: Path) -> None:
    message = lines(run("find", "data", "orders", "--key", "A-7", "--json", cwd=place))[0]
    assert (message["topic"], message["body"], message["tag"], message["keys"]) == (
        "orders",
        "order 7",
        "paid",
        ["A-7"],
    )
    assert lines(run("get", "data", str(message["message_id"]), "--json", cwd=place))[0] == message
    stat = lines(run("stat", "data", "--json", cwd=place))[0]
    assert (stat["messages"], stat["topics"], stat["closed_cleanly"]) == (30, 1, True)
    assert lines(run("topics", "data", "--json", cwd=place)) == [
        {"topic": "orders", "queues": 1, "messages": 30}
    ]
    assert lines(run("groups", "data", "--json", cwd=place)) == [
        {"group": "billing", "topic": "orders", "queue": 0, "offset": 12, "lag": 18}
    ]
    tagged = lines(
        run("read", "data", "orders", "--tag", "paid", "--limit", "3", "--json", cwd=place)
    )
    assert [m["body"] for m in tagged] == ["order 1", "order 3", "order 5"]


def test_the_change_stream_goes_in_and_comes_out_unchanged(place: Path) -> None:
    """Real file changes of a public repository, its odd paths and nulls among them."""
    source = DATA.read_bytes().splitlines()
    (place / "changes.ndjson").write_bytes(DATA.read_bytes())
    done = run("ingest", "changes", "changes.ndjson", "--topic", "changes-", "--topic-field", "module", "--key-field",
               "commit", "--key-field", "path", "--tag-field", "path:suffix", "--json", cwd=place)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert lines(done)[0]["stored"] == len(source)
    with penstock.open(place / "changes", read_only=True) as store:
        assert sum(
            store.max_offset(t, q) for t, queues in store.topics().items() for q in queues
        ) == len(source)
        by_topic: dict[str, list[bytes]] = {}
        for line in source:
            by_topic.setdefault("changes-" + json.loads(line)["module"], []).append(line)
        for topic, expected in by_topic.items():
            assert [m.body for m in store.scan(topic)] == expected
        for line in source[::9]:
            fields = json.loads(line)
            for key in (fields["commit"], fields["path"]):
                assert line in [
                    m.body for m in store.find(key, "changes-" + fields["module"], limit=5000)
                ]
        assert not list(store.verify())


def test_csv_parquet_and_compressed_pipes_go_in(place: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - extras
    from pyarrow import parquet  # noqa: PLC0415

    (place / "rows.csv").write_text('id,kind\n1,a\n2,"b, c"\n')
    parquet.write_table(
        pa.table({"id": [1, 2, 3], "kind": ["x", None, "z"]}), place / "rows.parquet"
    )
    assert (
        run("ingest", "s", "rows.csv", "--topic", "csv", "--key-field", "id", cwd=place).returncode
        == 0
    )
    assert (
        run(
            "ingest", "s", "rows.parquet", "--topic", "parquet", "--tag-field", "kind", cwd=place
        ).returncode
        == 0
    )
    text = gzip.decompress(gzip.compress(b"one\ntwo\n"))
    assert run("ingest", "s", "-", "--topic", "lines", cwd=place, given=text).returncode == 0
    with penstock.open(place / "s", read_only=True) as store:
        assert [json.loads(m.body) for m in store.scan("csv")][1] == {"id": "2", "kind": "b, c"}
        assert [m.tag for m in store.scan("parquet")] == ["x", "", "z"]
        assert [m.body for m in store.scan("lines")] == [b"one", b"two"]


def test_bad_rows_stop_or_are_skipped(place: Path) -> None:
    rows = b'{"t":"good"}\nno json\n{"t":"a/b"}\n{"t":"good"}\n'
    stopped = run(
        "ingest", "s", "-", "--format", "ndjson", "--topic-field", "t", cwd=place, given=rows
    )
    assert stopped.returncode == 2
    assert b"line 2: the line is not valid JSON" in stopped.stderr
    assert b"--skip-bad" in stopped.stderr
    skipped = run(
        "ingest",
        "s2",
        "-",
        "--format",
        "ndjson",
        "--topic-field",
        "t",
        "--skip-bad",
        "--json",
        cwd=place,
        given=rows,
    )
    assert skipped.returncode == 0
    with penstock.open(place / "s2", read_only=True) as store:
        assert list(store.topics()) == ["good"]


def test_ctrl_c_stops_an_ingest_cleanly(place: Path) -> None:
    process = subprocess.Popen(
        [*PENSTOCK, "ingest", "s", "-", "--topic", "t"], cwd=place, env=ENVIRONMENT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"line\n" * 5000)
    process.stdin.flush()
    eventually((place / "s" / "commitlog").exists)

    def stored_so_far() -> int:
        with penstock.open(place / "s", read_only=True) as store:
            return sum(store.max_offset("t", n) for n in store.topics().get("t", []))

    eventually(lambda: stored_so_far() >= 2000)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    stored = int(re.search(rb"interrupted after ([\d,]+) rows", errors)[1].replace(b",", b""))  # type: ignore[index] # it is there
    with penstock.open(place / "s") as store:
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
        [*PENSTOCK, "tail", "data", "orders", "-f", "--limit", "1", "--json"], cwd=place, env=ENVIRONMENT,
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
