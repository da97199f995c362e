"""What commands show: values, settings, errors and findings, what there is instead of nothing, the state and the files of a store."""

import json
import os
import re
import subprocess
from pathlib import Path

import click
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import errors
from penstock.contracts.dispatcher import Finding
from penstock.format.record import RecordFields, encode_record
from penstock.message import StoredMessage
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, open_store
from penstock_tools.cli import output
from penstock_tools.cli.contents import no_group, why_nothing
from penstock_tools.cli.state import StoreState, state_of
from penstock_tools.cli.store_files import index_used, parts
from penstock_tools.cli.wording import EXTRAS, missing_extra, text_of


def stored(**fields: object) -> StoredMessage:
    return StoredMessage(encode_record(RecordFields(topic=b"t", **fields)))  # type: ignore[arg-type] # any field


def test_data_and_prose_are_escaped_each_on_its_own_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.out("a\x1b[2J")
    output.note("b\u202e")
    output.out_json(topic="c\u202e")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ('a\\x1b[2J\n{"topic": "c\\u202e"}\n', "b\\u202e\n")


def test_a_message_is_json_with_its_body_as_text_or_base64() -> None:
    facts = output.message_facts(stored(body=b"text", queue=3))
    assert (facts["topic"], facts["queue"], facts["body"]) == ("t", 3, "text")
    assert output.message_facts(stored(body=b"\xff"))["body_base64"] == "/w=="
    assert json.loads(output.as_json(facts)) == facts


def test_a_long_body_is_shown_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.show_messages([stored(body=b"x" * 500)], json_lines=False) == 1
    line = capsys.readouterr().out
    assert "t/0@0" in line
    assert len(line) < 150


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (1 << 52, "4096.0 TiB")]
)  # fmt: skip
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert output.size_text(size) == text


def test_times_are_in_utc_and_an_impossible_one_is_a_number() -> None:
    assert output.time_text(1_704_067_200_007) == "2024-01-01 00:00:00.007Z"
    assert output.time_text(1 << 62) == f"{1 << 62} ms"


def test_a_finding_says_where_and_what_now_and_a_note_only_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.out_finding(Finding("log", Path("/p"), 7, 7, "bad", "do this"), "damage")
    output.out_finding(Finding("log", Path("/p"), -1, 7, "odd", is_note=True), "log")
    assert capsys.readouterr().out.splitlines() == [
        "damage: /p byte 7: bad", "    what to do: do this", "note on the log: /p: odd",
    ]  # fmt: skip


def test_settings_are_taken_apart_after_those_of_the_broker(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("flushDiskType=SYNC_FLUSH\nmaxIndexNum=7\n")
    found = output.chosen(["flush.use = none", "log.busy_ms=5"], str(path))
    assert found["flush.use"] == ("none", "--set")
    assert found["log.busy_ms"] == (5, "--set")
    assert found["geometry.index_entries"] == (7, "--broker-conf")
    with pytest.raises(click.UsageError, match="KEY=VALUE"):
        output.chosen(["flush.use"], None)


def test_a_table_takes_nothing_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.table("[red]", ["name", "count"], [["[bold]x", 12_345], [["a", "b\x1b"], 6]])
    shown = capsys.readouterr().out
    assert "[red]" in shown
    assert "[bold]x" in shown
    assert "12,345" in shown
    assert "\x1b[2" not in shown


def test_one_is_singular_and_nothing_is_plural() -> None:
    assert [output.counted(number, "row") for number in (0, 1, 1200)] == [
        "0 rows", "1 row", "1,200 rows",
    ]  # fmt: skip


ROOT = Path(__file__).parents[3]
PYTHON = re.compile(r"\b\w+=(True|False)\b|\b[a-z_]+\(\)")
# The errors whose Python text names a call or an argument.
IN_PYTHON = [
    errors.ArgumentError("read", "limit", 0, "a whole number, 1 or more"),
    errors.ArgumentTypeError("read", "limit", "x", "a whole number, 1 or more"),
    errors.StoreLockedError(Path("/s"), "process 7"),
    errors.ForeignContentError(Path("/s"), "opening is refused", [("a", "b")]),
    errors.DispatcherFailedError("consume-queue", "no space", 1, 2),
    errors.ReadOnlyError(),
]


@pytest.mark.parametrize("error", IN_PYTHON, ids=lambda error: type(error).__name__)
def test_a_text_has_no_call_in_it(error: Exception) -> None:
    assert PYTHON.search(str(error) + "read()" * isinstance(error, errors.ArgumentError))
    assert not PYTHON.search(text_of(error))
    assert not re.search(r"\b(read|open)\(", text_of(error))


def test_a_text_keeps_its_facts() -> None:
    assert text_of(IN_PYTHON[0]) == "limit 0 is refused: it must be a whole number, 1 or more"
    assert "process 7" in text_of(IN_PYTHON[2])
    assert (
        "commands that only read, such as penstock read and penstock stat, work meanwhile"
        in text_of(IN_PYTHON[2])
    )
    assert "show the rest" in text_of(IN_PYTHON[3])
    assert text_of(errors.ReadOnlyError("the disk is full")) == str(
        errors.ReadOnlyError("the disk is full")
    )
    assert text_of(errors.StoreClosedError()) == str(errors.StoreClosedError())


def test_an_error_of_the_system_is_its_file_and_reason() -> None:
    assert (
        text_of(FileNotFoundError(2, "No such file or directory", "x"))
        == "x: No such file or directory"
    )
    assert text_of(OSError("odd")) == "odd"


def test_a_missing_package_of_an_extra_is_named_and_any_other_is_a_defect() -> None:
    for package, extra in EXTRAS.items():
        error = missing_extra(ModuleNotFoundError("no", name=f"{package}.inner"), ["read", "x"])
        assert (error.package, error.extra) == (package, extra)
        assert str(error).startswith(f"penstock read needs {package}; install it with: pip install")
    assert (
        missing_extra(ModuleNotFoundError("no", name="pyarrow"), ["spark", "stats"]).extra
        == "spark"
    )
    defect = ModuleNotFoundError("no", name="penstock.nowhere")
    with pytest.raises(ModuleNotFoundError) as raised:
        missing_extra(defect, [])
    assert raised.value is defect


def test_every_extra_is_one_and_brings_its_package() -> None:
    given = (ROOT / "pyproject.toml").read_text()
    for package, extra in EXTRAS.items():
        found = re.search(rf"^{extra} = \[(.*)\]$", given, re.MULTILINE)
        assert found is not None, extra
        assert f'"{package}' in found[1], (package, extra)


@pytest.fixture
def store(open_small: OpenStore) -> Store:
    made = open_small(spawn=ManualWorkers())
    for number in range(6):
        made.put("orders", b"x", queue=number % 2)
    made.put("other", b"x", queue=3)
    return made


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (("ordres",), "there is no topic 'ordres', did you mean 'orders'? Topics in the store: orders, other"),
        (("zzz", 7, 9), "there is no topic 'zzz'. Topics in the store: orders, other"),
        (("orders", 7), "topic 'orders' has no queue 7; it has queues 0 to 3"),
        (("other", 0), "queue other/0 has no message: retention has deleted all, or none was put"),
        (("orders", 1, 3), "no message has queue offset 3 or a greater one; there are, in queue 1: 0 to 2"),
        (("orders", None, 9), "no message has queue offset 9 or a greater one; there are, in queue 0: 0 to 2, queue 1: 0 to 2"),
    ],
)  # fmt: skip
def test_the_reason_names_what_there_is(store: Store, where: tuple[str], text: str) -> None:
    assert why_nothing(store, *where) == text


def test_there_is_no_reason_where_messages_are(store: Store) -> None:
    assert why_nothing(store, "orders") is None
    assert why_nothing(store, "orders", 1, 2) is None
    # Another queue of the topic goes on at that offset.
    store.put("orders", b"x", queue=1)
    assert why_nothing(store, "orders", None, 3) is None


def test_many_topics_are_listed_in_part(store: Store) -> None:
    for number in range(30):
        store.put(f"t{number:02}", b"x", queue=0)
    assert str(why_nothing(store, "zzz")).endswith("t16, t17, and 12 more")


def test_queues_with_gaps_are_listed_one_by_one_where_no_configuration_says_more(
    open_small: OpenStore,
) -> None:
    bare = open_small(spawn=ManualWorkers(), extensions=[])
    for queue in (3, 5):
        bare.put("other", b"x", queue=queue)
    assert why_nothing(bare, "other", 4) == "topic 'other' has no queue 4; it has queues 3, 5"


def test_an_empty_store_and_an_empty_queue_say_so(open_small: OpenStore) -> None:
    empty = open_small(spawn=ManualWorkers())
    assert why_nothing(empty, "t") == "there is no topic 't': the store has no messages"


def test_a_missing_group_is_answered_with_the_nearest_and_all() -> None:
    assert no_group("a", []) == "there is no group 'a': the store has no consumer groups"
    assert (
        no_group("biling", ["billing", "shipping"])
        == "there is no group 'biling', did you mean 'billing'? Groups in the store: billing, shipping"
    )
    assert no_group("x", ["billing"]) == "there is no group 'x'. Groups in the store: billing"


def state(path: Path) -> StoreState:
    with open_store(path, read_only=True) as reader:
        return state_of(reader)


def test_a_store_in_use_names_its_process_and_is_not_called_unclean(tmp_path: Path) -> None:
    """`stat` said "in use, or not closed cleanly", which left the reader to find out which."""
    path = tmp_path / "s"
    with open_store(path, spawn=ManualWorkers()) as store:
        store.put("t", b"x", queue=0)
        found = state(path)
        assert found.text.startswith("in use by this process ")
        assert found.used_by is not None
        assert (found.used_by in found.text, found.closed_cleanly) == (True, False)
    assert state(path) == ("closed cleanly", None, True)


def test_a_store_that_a_crash_left_is_not_closed_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "s"
    open_store(path, spawn=ManualWorkers()).close()
    (path / "abort").touch()
    found = state(path)
    assert found.text.startswith(
        "not closed cleanly; the next program that opens it for writing recovers it"
    )
    assert (found.used_by, found.closed_cleanly) == (None, False)


def test_a_lock_of_another_program_is_named_by_its_process(tmp_path: Path) -> None:
    class OfBroker(FaultyFiles):
        def is_locked(self, path: Path) -> bool:
            return True

        def lock_owner(self, path: Path) -> int | None:
            return 4711

    path = tmp_path / "s"
    open_store(path, spawn=ManualWorkers()).close()
    with open_store(path, read_only=True) as reader:
        assert state_of(reader, OfBroker()).text == "in use by process 4711"


SIZES = {"segment_bytes": 65536, "queue_entries": 100, "index_slots": 1000, "index_entries": 4000}


@pytest.fixture
def sized(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "s", environ={}, geometry=SIZES) as made:
        for number in range(300):
            made.put(("a", "b")[number % 3 == 0], bytes(500), queue=0, keys=[str(number)])
        made.commit_offset("g", "a", 0, offset=1)
    (tmp_path / "s" / "penstock" / "saved").mkdir()
    (tmp_path / "s" / "penstock" / "saved" / "x").write_bytes(bytes(10_000))
    (tmp_path / "s" / "mine.txt").write_text("not a part of a store")
    return tmp_path / "s"


def test_the_parts_add_up_to_what_du_says(sized: Path) -> None:
    found = {part.part: part for part in parts(sized)}
    assert set(found) == {
        "log", "queues", "index", "offsets and broker settings", "Penstock's own files", "saved by repairs", "other",
    }  # fmt: skip
    folders = sum(
        path.stat().st_blocks * 512 for path in [sized, *sized.rglob("*")] if path.is_dir()
    )
    said = subprocess.run(
        ["du", "-s", "-B1", str(sized)], capture_output=True, text=True, check=True
    )
    assert sum(part.allocated for part in found.values()) + folders == int(said.stdout.split()[0])
    assert found["log"].size == 65536 * found["log"].files
    assert found["saved by repairs"].size == 10_000
    assert [part.allocated for part in parts(sized)] == sorted(
        (p.allocated for p in found.values()), reverse=True
    )


def test_the_index_uses_header_slots_and_entries(sized: Path) -> None:
    # The first entry of an index file is never used, and counts.
    assert index_used(sized, 1000) == 40 + 4 * 1000 + 20 * 301
    (path,) = (sized / "index").iterdir()
    (sized / "index" / "1").write_bytes(b"short")
    assert index_used(sized, 1000) == 40 + 4 * 1000 + 20 * 301
    with path.open("r+b") as file:
        file.write(b"\x7f" * 40)
    assert index_used(sized, 1000) == path.stat().st_size, "never more than there is"


def test_a_file_that_goes_meanwhile_is_left_out(
    sized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(path: Path) -> list[tuple[str, list[str], list[str]]]:
        return [(str(path), [], ["gone", "mine.txt"])]

    monkeypatch.setattr(os, "walk", walk)
    (found,) = parts(sized)
    assert (found.part, found.files) == ("other", 1)
