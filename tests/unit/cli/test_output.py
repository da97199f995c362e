"""How verbs show things: safe on a terminal, JSON that parses, settings taken apart."""

import json
from pathlib import Path

import click
import pytest

from penstock.cli import output
from penstock.contracts.findings import Finding
from penstock.format.record import RecordFields, encode_record
from penstock.message import StoredMessage


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
