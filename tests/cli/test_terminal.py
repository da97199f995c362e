"""No text from a store, a file name or an argument drives the terminal, or begins a line of the log by itself."""

import ast
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import OpenStore

import penstock
from penstock.errors import CorruptionError, PenstockError, StorageError, TopicError
from penstock.escape import EscapingFormatter, get_logger, visible, visible_json
from penstock_tools.cli.output import Bar, as_json, note, out, table
from penstock_tools.cli.root import run

ROOT = Path(__file__).parents[2]
# Written out here, not taken from the code that is tested.
DANGEROUS = [
    *map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u061c", "\u200e", "\u200f", "\u2028", "\u2029",
    *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\ud800", "\udcff", "\udfff",
]  # fmt: skip
RAW = re.compile("[" + "".join(c for c in DANGEROUS if c not in "\n\t") + "\ud800-\udfff]")
# Clears the screen, sets the title, goes back to the line's start, turns the text round, and is markup.
WORD = "w\x1b[2J\x1b]0;owned\x07\r\x08\x9b31m\u202e\u2066\u200f\u061c\x85[red]x[/red]"
EVIL = WORD + "\u2028\u2029\x7f\x00\nforged line"
TOPIC = "t\x9b31m\u202e\u2028[red]"


def strange_names(root: Path) -> list[Path]:
    """Put names that belong to no queue under `consumequeue`, and return them."""
    queues = root / "consumequeue"
    folders = [
        queues / "a\x1b[31m\nb", Path(os.fsdecode(os.fsencode(queues) + b"/\xff\xfe")), queues / "x\x7f",
        queues / TOPIC / "0\x1b\n", queues / TOPIC / "70000", queues / TOPIC / "007", queues / TOPIC / "-1",
        queues / TOPIC / "\u0663", queues / TOPIC / ("9" * 200), queues / TOPIC / "\u00b2",
    ]  # fmt: skip
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "0").mkdir()
    plain = [queues / "file", queues / "fi\nle", queues / TOPIC / "5", queues / TOPIC / "\x1b"]
    for file in plain:
        file.write_bytes(b"not a queue")
    return folders + plain


@pytest.fixture
def hostile(open_small: OpenStore, tmp_path: Path) -> Path:
    """A store with hostile texts in every place that takes them, at a hostile path."""
    root = tmp_path / "st\x1b[2J\u202e\nore"
    with open_small(path=root, retention=[]) as store:
        for number in range(5):
            store.put(
                TOPIC, EVIL.encode() + bytes(range(256)), queue=0, tag=WORD, keys=[WORD, f"k{number}"],
                properties={WORD: EVIL, "plain": "\x1b\u2066"},
            )  # fmt: skip
            store.put(TOPIC, EVIL.encode(), queue=1)
        store.commit_offset("g", TOPIC, 0, offset=2)
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {f"{TOPIC}@g": {"0": 2, WORD: 1, "1": 99}, EVIL: {"0": 1},
                                    f"{TOPIC}@{EVIL}": EVIL, "\udc9b@g": {"0": "\x1b"}}})
    )  # fmt: skip
    strange_names(root)
    (root / "index" / "x\x1b\n").write_bytes(b"no index")
    (root / "strange\x1b\n").write_bytes(b"unknown")
    return root


def say(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a verb; its output has no raw control character, and no line that a text began."""
    code = run(list(arguments))
    done = capsys.readouterr()
    for text in (done.out, done.err):
        found = RAW.search(text)
        assert found is None, (arguments, found, text[:2000])
        assert not re.search(r"^(forged line|ore|b/|le\b)", text, re.MULTILINE), (
            arguments,
            text[:2000],
        )
    return code, done.out, done.err


VERBS: dict[str, list[str]] = {
    "read": ["{store}", TOPIC], "read nothing": ["{store}", EVIL], "read tag": ["{store}", TOPIC, "--tag", WORD],
    "tail": ["{store}", TOPIC], "tail nothing": ["{store}", WORD],
    "find": ["{store}", TOPIC, "--key", WORD], "find nothing": ["{store}", TOPIC, "--key", EVIL],
    "find time": ["{store}", TOPIC, "--since", "2020-01-01"], "find bad": ["{store}", TOPIC, "--since", EVIL],
    "get": ["{store}", "0"], "get nothing": ["{store}", EVIL], "get offset": ["{store}", "17"],
    "topics": ["{store}"], "groups": ["{store}"], "stat": ["{store}"],
    "verify": ["{store}"], "verify deep": ["{store}", "--deep", "--jobs", "1"],
    "repair": ["{store}"], "repair apply": ["{store}", "--apply"],
    "flush": ["{store}"], "retain": ["{store}"], "retain dry": ["{store}", "--dry-run"],
    "init": ["{store}"], "put": ["{store}", TOPIC, EVIL, "--tag", WORD, "--key", WORD, "--property", f"a={WORD}"],
    "put refused": ["{store}", EVIL, "x"], "put property": ["{store}", TOPIC, "x", "--property", WORD],
    "put queue": ["{store}", TOPIC, "x", "--queue", EVIL], "put setting": ["{store}", "t", "x", "--set", f"flush.{WORD}=1"],
    "put flush": ["{store}", "t", "x", "--set", f"flush.use={WORD}"], "put no setting": ["{store}", "t", "x", "--set", WORD],
    "ingest": ["{store}", "{source}", "--topic", "in"], "ingest key": ["{store}", "{source}", "--topic", "in", "--key-field", WORD],
    "ingest missing": ["{store}", WORD, "--topic", "in"],
    "config": ["--set", f"{WORD}={EVIL}"], "config file": ["--config", "{missing}"],
    "config host": ["--set", f"log.store_host={WORD}", "--show-origin"],
    "plugins": [], "plugins check": ["check", WORD], "stat missing": ["{missing}"], "stat plain": ["{source}"],
    "topics option": ["{store}", f"--{WORD}"], "stat more": ["{store}", EVIL],
}  # fmt: skip
WITHOUT_JSON = {"topics option"}


@pytest.mark.parametrize("as_lines", [False, True], ids=["people", "json"])
@pytest.mark.parametrize("case", VERBS)
def test_no_verb_lets_a_control_character_through(
    case: str, as_lines: bool, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An escape sequence in a tag or a topic reached the terminal as it was: it could clear the screen, forge
    output, or set the title."""
    source = tmp_path / "so\x1burce\u202e"
    source.write_bytes(b"a line\n" + EVIL.encode() + b"\n\xff\xfe\n")
    places = {
        "store": str(hostile),
        "source": str(source),
        "missing": str(tmp_path / EVIL.replace("\0", "")),
    }
    verb = case.partition(" ")[0]
    given = [places.get(a.strip("{}"), a) if a.startswith("{") else a for a in VERBS[case]]
    code, shown, said = say(capsys, "-v", verb, *given, *(["--json"] if as_lines else []))
    assert code in (0, 1, 2, 4, 5), (shown, said)
    if as_lines and shown:
        for line in shown.splitlines():
            json.loads(line)


def test_json_gives_every_text_back(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, shown, _ = say(capsys, "get", str(hostile), "0", "--json")
    found = json.loads(shown)
    assert (found["topic"], found["tag"], found["keys"][0]) == (TOPIC, WORD, WORD)
    assert found["properties"][WORD] == EVIL
    _, shown, _ = say(capsys, "topics", str(hostile), "--json")
    assert [json.loads(line)["topic"] for line in shown.splitlines()] == [TOPIC]
    _, shown, _ = say(capsys, "read", str(hostile), TOPIC, "--queue", "1", "--json")
    assert {json.loads(line)["body"] for line in shown.splitlines()} == {EVIL}


OVERVIEWS = ("stat", "topics", "groups", "verify", "repair", "retain", "init")


@pytest.mark.parametrize("verb", OVERVIEWS)
def test_a_strange_name_under_the_queues_is_named_and_stops_no_overview(
    verb: str, open_small: OpenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with a control character in its name stopped `stat`, `topics`, `verify`, `repair`, `groups` and
    `retain` with a TopicError."""
    root = tmp_path / "store"
    with open_small(path=root, retention=[]) as store:
        for number in range(10):
            store.put(TOPIC, b"x", queue=number % 2)
        store.commit_offset("g", TOPIC, 0, offset=2)
    names = strange_names(root)
    code, shown, said = say(capsys, verb, str(root))
    assert code == (1 if verb == "verify" else 0), said
    for path in names:
        assert f"{visible(path)}, " in said, "it is named"
        assert (
            said.count(f"{visible(path)}, ") == (2 if verb == "repair" else 1) or verb == "repair"
        )
        assert path.exists(), "it is left"
    if verb == "verify":
        findings = shown.count("stray: ")
        assert findings == len(names)
        assert shown.count("move it out of the store by hand") == findings


def test_a_store_with_strange_names_is_read_and_written_as_any(
    open_small: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    with open_small(path=root, retention=[]) as store:
        for number in range(10):
            store.put(TOPIC, b"%d" % number, queue=number % 2)
    names = strange_names(root)
    caplog.clear()
    with penstock.open(root, read_only=True) as reader:
        for _ in range(3):
            assert reader.topics() == {TOPIC: [0, 1]}
        assert [m.body for m in reader.scan(TOPIC)] == [b"%d" % n for n in range(10)]
        assert reader.space()[0].messages == 10
        assert reader.stats()["queues"] == 2
        found = list(reader.verify())
        assert {f.path for f in found} == set(names)
        assert {f.part for f in found} == {"stray"}
    warned = [r for r in caplog.records if "it was not changed" in r.getMessage()]
    assert len(warned) == len(names), "each once for a store that is opened"
    with penstock.open(root, environ={}, retention=[]) as store:
        assert store.topics() == {TOPIC: [0, 1]}
        assert store.put(TOPIC, b"10", queue=0).queue_offset == 5
        before = store.stats()["log_end_offset"]
        for topic, queue in (("file", 0), (TOPIC, 5)):
            with pytest.raises(StorageError, match="needs this name"):
                store.put(topic, b"it would have no queue", queue=queue)
        assert store.stats()["log_end_offset"] == before
    assert not penstock.repair(root, apply=True).steps
    assert all(path.exists() for path in names)


def test_a_rebuild_of_the_queues_leaves_strange_names_where_they_are(
    open_small: OpenStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with open_small(path=root, retention=[]) as store:
        for number in range(10):
            store.put(TOPIC, b"%d" % number, queue=0)
    names = strange_names(root)
    before = {path: path.stat().st_ino for path in names}
    with (root / "consumequeue" / TOPIC / "0" / f"{0:020d}").open("r+b") as file:
        file.write(bytes(100))
    report = penstock.repair(root, apply=True)
    assert [step.action for step in report.steps]
    assert {path: path.stat().st_ino for path in names} == before
    with penstock.open(root, read_only=True) as reader:
        assert [m.body for m in reader.scan(TOPIC)] == [b"%d" % n for n in range(10)]
        assert {f.part for f in reader.verify(deep=True)} == {"stray"}
    assert not penstock.repair(root, apply=True).steps


def test_groups_names_what_is_not_used_and_what_is_beyond_the_end(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, said = say(capsys, "groups", str(hostile), "--json")
    assert code == 0
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [(r["group"], r["topic"], r["queue"], r["offset"], r["lag"]) for r in rows] == [
        ("g", TOPIC, 0, 2, 3), ("g", TOPIC, 1, 99, -94),
    ]  # fmt: skip
    assert said.count("not used: consumerOffset.json, entry") == 4
    assert "a negative lag" in said
    _, shown, _ = say(capsys, "init", str(hostile), "--json")
    (mended,) = [m for m in json.loads(shown)["mended"] if "set back" in m]
    assert "offset 99 of group g" in mended
    assert "set back to 5" in mended
    _, shown, said = say(capsys, "groups", str(hostile), "--json")
    assert json.loads(shown.splitlines()[1])["lag"] == 0
    assert "a negative lag" not in said


# --- the parts


@pytest.mark.parametrize("character", DANGEROUS, ids=ascii)
def test_every_dangerous_character_is_shown_and_stays_in_json(character: str) -> None:
    text = f"a{character}b"
    shown = visible(text)
    assert shown == f"a{ascii(character)[1:-1]}b"
    assert visible(shown) == shown
    assert character in (visible(text, keep_lines=True) if character in "\n\t" else text)
    line = as_json({text: [text]})
    assert not RAW.search(line)
    assert "\n" not in line
    assert json.loads(line) == {text: [text]}
    assert str(PenstockError(text)) == shown
    assert str(CorruptionError(Path(text), 0, text, text)).isprintable()
    assert str(TopicError(text, text)).isprintable()
    error = TopicError(text, text)
    assert error.topic == text, "attributes are as they were given"


def test_what_is_no_danger_stays_as_it_is() -> None:
    text = "plain \\x1b \u00e4\u4e2d\U0001f600 e\u0301 [red]"
    assert visible(text) == text
    assert visible_json(json.dumps(text, ensure_ascii=False)) == f'"{text}"'.replace("\\x", "\\\\x")
    assert visible(Path("a")) == "a"
    assert visible("a\tb\nc", keep_lines=True) == "a\tb\nc"


def test_markup_in_what_is_shown_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table(
        "[bold]title[/bold]", ("[red]column[/red]",), [("[blink]cell[/blink]",), (["[a]", WORD],)]
    )
    out("[red]data[/red]")
    note("[red]prose[/red]")
    with Bar("[red]what[/red]", 1, "[x]", quiet=False) as bar:
        bar.set(1, 1)
    done = capsys.readouterr()
    for text in (
        "[bold]title[/bold]",
        "[red]column[/red]",
        "[blink]cell[/blink]",
        "[a]",
        "[red]data[/red]",
    ):
        assert text in done.out
    assert "[red]prose[/red]" in done.err
    assert not RAW.search(done.out + done.err)


LOGGED: dict[str, Callable[[logging.Logger], None]] = {
    "text": lambda log: log.warning("%s", EVIL), "path": lambda log: log.warning("%s: %d", Path("a" + WORD), 7),
    "error": lambda log: log.error("%s", OSError(5, EVIL, WORD)), "quoted": lambda log: log.error("%r", ValueError(EVIL)),
    "plain error": lambda log: log.error("%s", ValueError(EVIL)), "padded": lambda log: log.error("%-5s|", Path(WORD)),
    "mapping": lambda log: log.error("%(a)s", {"a": WORD}),
}  # fmt: skip


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the standard library's formatter makes of log lines: caplog's handler gets Spark's where Spark was imported."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    log = logging.getLogger("penstock")
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


@pytest.mark.parametrize("case", LOGGED)
def test_a_log_line_has_no_raw_text(case: str, written: io.StringIO) -> None:
    log = get_logger("penstock.test")
    LOGGED[case](log)
    text = written.getvalue()
    assert not RAW.search(text)
    assert text.count("\n") == 1, "one line, whatever it says"


def test_a_logged_traceback_has_no_raw_text(written: io.StringIO) -> None:
    log = get_logger("penstock.test")
    try:
        int(EVIL, base=99)
    except ValueError as error:
        error.args = (EVIL,)
        log.exception("a plugin failed")
    assert "Traceback" in written.getvalue()
    assert not RAW.search(written.getvalue())


def test_what_other_packages_log_is_escaped_by_the_command() -> None:
    record = logging.LogRecord("x", 30, "f", 1, EVIL, None, None)
    assert not RAW.search(EscapingFormatter("%(message)s").format(record))


def test_every_module_takes_its_logger_from_one_place() -> None:
    for folder in ("core", "plugins", "pipeline"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == "escape.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                    assert ast.unparse(node) == "logging.getLogger('penstock')", path


def test_the_command_prints_in_one_place() -> None:
    allowed = {"output.py", "root.py", "__init__.py", "demo.py", "matrix.py"}
    for folder in ("tools/penstock_tools/cli", "pipeline"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                assert name not in ("click.echo", "click.secho"), (
                    f"{path.name}: out and note escape"
                )
                if name in ("print", "sys.stdout.write", "sys.stderr.write"):
                    assert path.name in allowed, f"{path.name}: out and note escape"
