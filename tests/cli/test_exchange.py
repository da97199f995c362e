"""`export` and `import` as a user runs them: exit codes, pipes, and real processes that are killed."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run
from tests.conftest import messages_in

import penstock
from penstock import Message

PENSTOCK = [sys.executable, "-m", "penstock"]
SIZES: dict[str, Any] = {"geometry.segment_bytes": 1 << 20}
COUNT = 300


@pytest.fixture(autouse=True)
def _as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_GEOMETRY__SEGMENT_BYTES", "1048576")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The current folder, with a store `data` of two topics, of all kinds of messages."""
    with penstock.open(tmp_path / "data", environ={}, **SIZES) as store:
        store.put_many(
            [
                Message(
                    ("orders", "paid")[n % 3 == 0], bytes([n % 256]) * (n % 50), queue=n % 2, tag=("x", "")[n % 2],
                    keys=[f"A-{n}", "two", "words"], properties={"n": str(n), "é\n": '"\x1b'}, flag=-n, sys_flag=8 * (n % 2),
                    born_time_ms=n, born_host=("[::1]:1", "10.0.0.1:2")[n % 2], reconsume_times=n, prepared_offset=n << 40,
                )
                for n in range(COUNT)
            ]
        )  # fmt: skip
    return tmp_path


def content(path: Path) -> list[dict[str, Any]]:
    with penstock.open(path, read_only=True) as store:
        found = sorted((m for t in store.topics() for m in store.scan(t)), key=lambda m: m.log_offset)  # fmt: skip
        names = ("topic", "queue", "queue_offset", "body", "all_properties", "flag", "sys_flag", "born_time_ms", "born_host",
                 "reconsume_times", "prepared_offset", "keys", "tag")  # fmt: skip
        return [{name: getattr(m, name) for name in names} for m in found]


@pytest.mark.parametrize("name", ["m.ndjson", "m.ndjson.gz", "m.csv", "m.csv.gz", "m.parquet", "m.arrow"])  # fmt: skip
def test_a_store_is_equal_after_export_and_import(place: Path, name: str) -> None:
    out = run("export", "data", "--to", name, "--json")
    report = {
        "path": name, "format": name.split(".")[1], "messages": COUNT, "bytes": (place / name).stat().st_size,
        "topics": {"orders": 200, "paid": 100}, "unreadable": 0, "deleted": 0,
    }  # fmt: skip
    assert (out.code, out.rows) == (0, [report])
    back = run("import", "copy", name, "--json")
    back.expect(0)
    (found,) = back.rows
    assert (found["stored"], found["stored_before"], found["skipped"]) == (COUNT, 0, 0)
    assert "log_offset" in found["assigned_anew"]
    assert content(place / "copy") == content(place / "data")
    run("import", "copy", name).expect(0, err="all rows were stored before; --restart")
    run("verify", "copy", "--deep").expect(0)


@pytest.mark.parametrize("kind", ["ndjson", "csv", "arrow"])
def test_a_pipe_from_store_to_store(place: Path, kind: str) -> None:
    out = run("export", "data", "--topic", "paid", "--to", "-", "--format", kind)
    assert (out.code, "exported 100 messages of 1 topic to -" in out.err) == (0, True)
    run("import", "copy", "-", "--format", kind, "--topic", "other", given=out.data).expect(0)
    expected = [{**m, "topic": "other"} for m in content(place / "data") if m["topic"] == "paid"]
    assert content(place / "copy") == expected


def test_what_read_json_prints_can_be_imported(place: Path) -> None:
    shown = run("read", "data", "orders", "--limit", "1000", "--json")
    run("import", "copy", "-", "--format", "ndjson", given=shown.data).expect(0)
    expected = [m["body"] for m in content(place / "data") if m["topic"] == "orders"]
    assert [m["body"] for m in content(place / "copy")] == expected


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (["export", "data", "--to", "m.xml"], 2, "does not end in one of: .ndjson"), (["export", "data"], 2, "--to"),
    (["export", "data", "--to", "-"], 2, "--to - needs --format"), (["export", "data", "--to", "m.csv", "--topic", "none"], 2, "topics in the store: orders, paid"),
    (["export", "data", "--to", "no/m.csv"], 2, "no is not a folder"), (["export", "data", "--to", "mine.csv"], 2, "mine.csv exists"),
    (["export", "data", "--to", "m.csv", "--queue", "9"], 2, "no queue 9; queues: [0, 1]"), (["import", "copy", "none.csv"], 4, "none.csv: No such file or directory"),
    (["import", "copy", "mine.csv"], 2, "line 1: column 'a' is not a field of a message"), (["import", "copy", "mine.csv", "--column", "a"], 2, "takes FIELD=NAME"),
    (["import", "copy", "mine.csv", "--column", "body=a", "--ignore-unknown"], 2, "column 'topic' is missing: give it for the whole file with --topic"),
    (["import", "copy", "not.parquet"], 2, "not a Parquet file"),
    (["import", "copy", "not.arrow"], 2, "not an Arrow file"), (["import", "copy", "not.csv.gz"], 2, "not a gzip file"),
])  # fmt: skip
def test_a_users_mistake_is_one_line_that_says_what_to_do(
    place: Path, arguments: list[str], code: int, says: str
) -> None:
    (place / "mine.csv").write_text("a,b\n1,2\n")
    for name in ("not.parquet", "not.arrow", "not.csv.gz"):
        (place / name).write_text("something else that is long enough")
    done = run(*arguments)
    done.expect(code, err=says)
    assert done.out == ""
    assert "Traceback" not in done.err
    assert not list(place.glob("*.part"))


def test_a_file_of_others_by_its_columns(place: Path) -> None:
    (place / "mine.csv").write_text("a,b\n1,2\n3,4\n")
    columns = ("--column", "body=a", "--column", "tag=b")
    run("import", "copy", "mine.csv", *columns, "--topic", "t").expect(0)
    assert [(m["body"], m["tag"]) for m in content(place / "copy")] == [(b"1", "2"), (b"3", "4")]


def test_a_reader_that_leaves_early_ends_an_export(place: Path) -> None:
    for kind in ("csv", "arrow"):
        with penstock.open(place / "data", environ={}) as store:
            store.put("large", bytes(1 << 18), queue=0)
        process = subprocess.Popen(
            [*PENSTOCK, "export", "data", "--to", "-", "--format", kind],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 141, (kind, errors)
        process.stderr.close()
        assert b"Traceback" not in errors, errors
        assert b"Exception" not in errors, errors


WITHOUT_ARROW = """
import sys
sys.modules["pyarrow"] = None
from penstock_tools.cli.root import run
sys.exit(run(sys.argv[1:]))
"""


def test_only_parquet_and_arrow_need_the_extra(place: Path) -> None:
    for name, code in (("m.csv", 0), ("m.arrow", 2)):
        for arguments in (["export", "data", "--to", name], ["import", f"of-{name}", name]):
            if code and arguments[0] == "import":
                (place / name).touch()
            done = subprocess.run(
                [sys.executable, "-c", WITHOUT_ARROW, *arguments], capture_output=True, check=False,
            )  # fmt: skip
            assert done.returncode == code, (name, done.stderr)
            assert (b"pip install 'penstock[arrow]'" in done.stderr) == bool(code)
        assert not (place / f"{name}.part").exists()


# The call that ends the process, by its number: so that it ends in the middle, however fast the machine is.
ENDS_ITSELF = """
import os, sys
from importlib import import_module
from penstock_tools.cli.root import run
module, owner, name, count, number, *arguments = sys.argv[1:]
owner = getattr(import_module(module), owner)
plain, calls = getattr(owner, name), []
def call(*given, **more):
    found = plain(*given, **more)
    calls.append(1)
    if len(calls) == int(count):
        os.kill(os.getpid(), int(number))
    return found
setattr(owner, name, call)
sys.exit(run(arguments))
"""


def run_until(
    where: tuple[str, str, str], count: int, number: int, *arguments: str
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command in a process that sends itself a signal after the call `where` was made `count` times."""
    return subprocess.run(
        [sys.executable, "-c", ENDS_ITSELF, *where, str(count), str(number), *arguments],
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_import_that_is_stopped_goes_on_and_stores_each_row_once(
    place: Path, number: signal.Signals
) -> None:
    rows = 9000
    with (place / "m.ndjson").open("w") as file:
        for n in range(rows):
            asks = {"DELAY": "1"} if n % 1000 == 7 else {}
            file.write(json.dumps({"topic": "t", "body": f"{n}", "properties": asks}) + "\n")
    put = ("penstock.store.store", "Store", "put_many")
    done = run_until(put, 6, number, "import", "copy", "m.ndjson")
    assert done.returncode == (130 if number == signal.SIGINT else -9), done.stderr
    if number == signal.SIGINT:
        assert b"interrupted after 4,000 rows, all stored; the same command" in done.stderr
    with penstock.open(place / "copy") as store:
        before = len(messages_in(store, "t"))
        assert 2000 < before < rows
    again = run("import", "copy", "m.ndjson", "--json")
    again.expect(0)
    (found,) = again.rows
    assert (found["stored_before"], found["stored"]) == (before, rows - before)
    with penstock.open(place / "copy", read_only=True) as store:
        assert [m.body for m in store.scan("t")] == [b"%d" % n for n in range(rows)]


def test_a_killed_export_leaves_no_file_and_the_next_one_is_whole(place: Path) -> None:
    with penstock.open(place / "data", environ={}) as store:
        store.put_many([Message("large", bytes(4000), queue=0) for _ in range(5000)])
    write = ("penstock_tools.exchange.text_files", "CsvWriter", "write")
    done = run_until(write, 3, signal.SIGKILL, "export", "data", "--to", "m.csv")
    assert done.returncode == -9
    assert not (place / "m.csv").exists()
    assert (place / "m.csv.part").exists()
    (whole,) = run("export", "data", "--to", "m.csv", "--json").rows
    assert whole["messages"] == COUNT + 5000
    assert not (place / "m.csv.part").exists()
    run("import", "copy", "m.csv").expect(0)
    assert content(place / "copy") == content(place / "data")
