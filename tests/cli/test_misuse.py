"""Wrong values, missing values and missing extras for every command: one message and an exit code, and no harm.

The commands and their parameters are found through click: what `penstock` and the installed plugins offer. A new
command or option is tried without a change here.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from tests.cli import commands
from tests.lanes import cases

import penstock
from penstock_tools.cli import root
from penstock_tools.cli.wording import EXTRAS

JUNK = [
    "", " ", "-", "--", "-1", "0", "1.5", "nan", "1e999", "x", "None", "99999999999999999999999", "9" * 400, "-inf", "9" * 5000, "earliest", "a=b", "=",
    "rows.txt/x", ".", "\x1b[2J", "é", "\udcff", "x" * 5000, "[", "{}", "flush.use=5", "flush.sync.timeout_ms=-1",
]  # fmt: skip
# What a message of the command line never holds: the argument of a call, or a call.
PYTHON = re.compile(r"\b\w+=(True|False|None)\b|\b[a-z_]+\(\)|\b[a-z_]+\(\w+=|Traceback|\[Errno")
# These end only with Ctrl-C; their other options are tried.
ENDLESS = {"--follow"}
# What takes minutes or deletes, and begins after all values were looked at: the function that does the work.
WORK = {
    "matrix": "penstock_tools.cli.verbs.matrix._run",
    "demo": "penstock_tools.cli.verbs.demo.Demo.ingest",
    "plugins check": "penstock_tools.cli.verbs.plugins._load_checker",
    # Its flag --apply is no mistake, and does what it says.
    "topic delete": "penstock.store.store.Store.delete_topic",
}


class Reached(Exception):  # noqa: N818 - not an error: the values were accepted
    """The work of a command would begin."""


class Verb(NamedTuple):
    """A command, with the words that name it."""

    words: tuple[str, ...]
    command: click.Command

    @property
    def name(self) -> str:
        return " ".join(self.words)


def verbs_of(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[Verb]:
    """Yield every command, those of groups too; a group that also works by itself is one."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from verbs_of(command, (*words, name))
            if not command.invoke_without_command:
                continue
        yield Verb((*words, name), command)


VERBS = list(verbs_of(root.cli))
LOCAL = [verb for verb in VERBS if verb.words[0] != "spark"]


def valid(parameter: click.Parameter, store: str) -> list[str]:
    """Return a value for a required parameter."""
    made = {"topic": "orders", "address": "0", "body": "x", "name": "none"}
    value = made.get(parameter.name or "", store)
    if parameter.name == "source":
        value = "rows.txt"
    if isinstance(parameter, click.Option) and parameter.name == "path":
        # A folder that a command makes for itself.
        value = "fresh"
    return [value] if isinstance(parameter, click.Argument) else [parameter.opts[-1], value]


def base(verb: Verb, store: str, without: click.Parameter | None = None) -> list[str]:
    """Return a valid command line, without one parameter."""
    line = list(verb.words)
    for parameter in verb.command.params:
        # A path is always given: without it, some commands work on the current folder.
        if parameter is not without and (parameter.required or parameter.name == "path"):
            line += valid(parameter, store)
    if verb.words == ("ingest",):
        line += ["--topic", "orders"]
    return line


def lines_of(verb: Verb, store: str) -> Iterator[list[str]]:
    """Yield command lines with one wrong or missing value each."""
    yield [*base(verb, store), "--no-such-option"]
    yield [*base(verb, store), "too", "many", "values"]
    for parameter in verb.command.params:
        line = base(verb, store, parameter)
        yield line
        if isinstance(parameter, click.Argument):
            for value in JUNK:
                at = [p for p in verb.command.params if isinstance(p, click.Argument)].index(
                    parameter
                )
                words = list(line)
                words.insert(len(verb.words) + at, value)
                yield words
            continue
        option = max(parameter.opts, key=len)
        if option in ENDLESS:
            continue
        if parameter.is_flag:  # type: ignore[attr-defined] # an argument was handled above
            yield [*line, option]
            yield [*line, f"{option}=x"]
            continue
        yield [*line, option]
        yield from ([*line, f"{option}={value}"] for value in JUNK)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    sizes: dict[str, Any] = {"geometry.segment_bytes": 1 << 20}
    with penstock.open(place / "store", environ={}, **sizes) as store:
        for number in range(6):
            store.put("orders", b"%d" % number, queue=number % 2, tag="t", keys=[f"k{number}"])
    (place / "rows.txt").write_text("a\nb\n")
    return place


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the store; some of the values are names of files."""
    shutil.copytree(made, tmp_path / "here", copy_function=shutil.copy2)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def run(*line: str) -> commands.Done:
    """Run a command line; whatever is raised is a defect, apart from having reached the work."""
    try:
        return commands.run(*line, given=b"a\nb\n")
    except Reached:
        return commands.Done(0, b"", "")
    except BaseException as error:
        raise AssertionError(f"penstock {' '.join(line)!r} ends with {error!r}") from error


@pytest.mark.parametrize("verb", LOCAL, ids=lambda verb: verb.name)
def test_a_command_ends_with_a_message_and_a_code_and_does_no_harm(
    verb: Verb, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verb.name in WORK:

        def reach(*_: Any, **__: Any) -> None:
            raise Reached

        monkeypatch.setattr(WORK[verb.name], reach)
    for line in cases(lines_of(verb, "store"), verb.name, of_so_many=8):
        code, _, said = run(*line)
        shown = f"penstock {' '.join(line)[:300]!r}"
        assert code in (0, 1, 2, 3, 4, 5), shown
        assert code in (0, 1) or said.strip(), f"{shown} fails without a word"
        assert not PYTHON.search(said), f"{shown} says {said}"
        assert "\x1b[2J" not in said, shown
    run("verify", "store", "--deep", "--quiet").expect(0)
    with penstock.open(here / "store", read_only=True, environ={}) as store:
        assert [m.body for m in store.read("orders", 0, 0, 3).messages] == [b"0", b"2", b"4"]


@pytest.mark.usefixtures("here")
def test_a_command_of_spark_refuses_what_it_cannot_use_before_it_starts_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As without the package: no session can begin.
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    for verb in VERBS:
        if verb.words[0] == "spark":
            for line in cases(lines_of(verb, "store"), verb.name):
                code, _, said = run(*line)
                assert code in (0, 1, 2, 4), line
                assert not PYTHON.search(said), (line, said)


def test_every_command_is_tried() -> None:
    assert {verb.words[0] for verb in VERBS} == set(root.cli.list_commands(click.Context(root.cli)))
    assert {"read", "ingest", "plugins check", "spark verify"} <= {verb.name for verb in VERBS}
    assert set(WORK) <= {verb.name for verb in VERBS}


BARE = """
import importlib.abc, json, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

GONE = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Missing())
from penstock_tools.cli import root
for line in json.loads(sys.argv[2]):
    sys.stderr.write("\\0")
    try:
        code = root.run(line)
    except BaseException as error:
        code = repr(error)
    sys.stderr.write(f"\\1{code}")
"""


def test_without_any_extra_but_its_own_each_command_works_or_names_the_extra(here: Path) -> None:
    """With `penstock[cli]` alone, `demo` and the jobs on Spark ended with a traceback and exit code 1."""
    lines = [base(verb, "store") for verb in VERBS if "matrix" not in verb.words]
    done = subprocess.run(
        [sys.executable, "-c", BARE, ",".join(EXTRAS), json.dumps(lines)],
        capture_output=True, text=True, cwd=here, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    outcomes = [part.split("\1") for part in done.stderr.split("\0")[1:]]
    assert len(outcomes) == len(lines)
    needing = set()
    for line, (said, code) in zip(lines, outcomes, strict=True):
        assert code in ("0", "1", "2"), (line, said, code)
        if "pip install" in said:
            assert code == "2", (line, said)
            needing.add(line[0])
    assert {"demo", "plugins", "spark"} <= needing
    assert not needing & {"read", "put", "stat", "verify", "repair", "ingest", "find", "tail"}


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["read", "store", "orders", "--queue", "7"], 1, "topic 'orders' has no queue 7; it has queues 0 to 3"),
        (["read", "store", "orders", "--offset", "99"], 1, "in queue 0: 0 to 2, queue 1: 0 to 2"),
        (["read", "store", "orders", "--tag", "none"], 1, "no message of topic 'orders' matches"),
        (["read", "store", "orders", "--limit", "3"], 0, "there are more than 3: --limit shows them"),
        (["read", "store", "orders", "--since", "1h", "--key", "none"], 1, "no message of topic 'orders' matches"),
        (["read", "store", "orders", "--since", "1h", "--until", "2h"], 2, "--since is after --until"),
        (["export", "store", "--to", "out.csv", "--topic", "ordes"], 2, "did you mean 'orders'?; topics in the store: orders"),
        (["groups", "reset", "store", "g", "--to", "earlest"], 2, "did you mean 'earliest'?"),
        (["init", "/dev/null"], 4, "it is not a folder"),
        (["tail", "store", "ordres"], 1, "there is no topic 'ordres', did you mean 'orders'?"),
        (["find", "store", "none", "--key", "k"], 1, "there is no topic 'none'. Topics in the store: orders"),
        (["find", "store", "orders", "--since", "soon"], 2, "'soon' is not a time: a time is written like"),
        (["find", "store", "orders", "--since", "1h", "--until", "2h"], 2, "--since is after --until"),
        (["get", "store", "x"], 2, "Invalid value for ADDRESS: 'x' is neither a log offset nor a message id"),
        (["put", "store", "orders", "x", "--set", "flush.us=sync"], 2, "no setting flush.us (--set); did you mean flush.use?"),
        (["retain", "store", "--dry-run", "--days", "-1"], 2, "--days"),
        (["ingest", "new", "none.txt", "--topic", "t"], 4, "penstock: none.txt: No such file or directory"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("here")
def test_a_mistake_is_named_as_the_command_line_names_it(
    line: list[str], code: int, said: str
) -> None:
    found = run(*line)
    assert (found.code, said in " ".join(found.err.split())) == (code, True), found


def test_a_store_in_use_says_so_in_words_of_the_command_line(here: Path) -> None:
    with penstock.open(here / "store", environ={}):
        run("put", "store", "orders", "x", "--set", "flush.use=sync").expect(
            3, err="stop that program first; commands that only read"
        )
        run("stat", "store").expect(0, err="in use by this process")
    run("stat", "store").expect(0, err="State: closed cleanly")


@pytest.mark.usefixtures("here")
def test_messages_are_found_since_a_time_as_it_is_printed() -> None:
    printed = run("read", "store", "orders", "--limit", "1").out.partition("  ")[0]
    found = run("find", "store", "orders", "--since", printed)
    assert (found.code, len(found.out.splitlines())) == (0, 6)
    run("find", "store", "orders", "--until", "1970-01-02").expect(1)


def test_a_body_that_is_not_utf_8_is_stored_as_it_was_given(here: Path) -> None:
    """`penstock put data t $'\\xff'` ended with a traceback."""
    run("put", "store", "raw", "a\udcff").expect(0)
    with penstock.open(here / "store", read_only=True, environ={}) as store:
        assert store.read("raw", 0).messages[0].body == b"a\xff"
