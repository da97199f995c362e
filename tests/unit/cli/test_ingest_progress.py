"""How far an ingest came: what it notes, and what it takes for the rows of an earlier run. See tests/cli/test_ingest_resume.py."""

import json
from pathlib import Path

import pytest

import penstock
from penstock import Message
from penstock.cli.ingest_progress import IngestProgress, Position, Row, Rows, SourceChangedError
from penstock.errors import MessageError


def rows(*bodies: bytes) -> Rows:
    return iter([Row(body, {}, 0) for body in bodies])


def message_of(row: Row) -> Message:
    return Message("t", row.body)


def test_a_position_depends_on_each_row_and_their_order() -> None:
    digests = set()
    for bodies in ([b"a", b"b"], [b"b", b"a"], [b"ab"], [b"a", b"b", b""], [b"a"], []):
        position = Position()
        for body in bodies:
            position.advance(Row(body, {}, 0))
        assert position.rows == len(bodies)
        digests.add(position.digest())
    assert len(digests) == 6
    position = Position()
    position.advance(MessageError("line 1"))
    assert position.digest() not in digests


def test_what_is_noted_is_skipped_and_compared(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", environ={}) as store:
        first = IngestProgress(store, tmp_path / "x", {})
        assert len(list(first.begin(rows(b"1", b"2", b"3"), message_of, restart=False))) == 3
        for body in (b"1", b"2"):
            first.position.advance(Row(body, {}, 0))
        first.write(is_exact=True)
        again = IngestProgress(store, tmp_path / "x", {})
        left = again.begin(rows(b"1", b"2", b"3"), message_of, restart=False)
        assert [row.body for row in left if isinstance(row, Row)] == [b"3"]
        for changed in (rows(b"1"), rows(b"1", b"9", b"3"), rows()):
            with pytest.raises(SourceChangedError, match="--restart"):
                IngestProgress(store, tmp_path / "x", {}).begin(changed, message_of, restart=False)
        other = IngestProgress(store, tmp_path / "x", {"topic": "u"})
        assert len(list(other.begin(rows(b"7"), message_of, restart=False))) == 1
        again.end()
        again.end()
        begun = IngestProgress(store, tmp_path / "x", {})
        assert len(list(begun.begin(rows(b"5"), message_of, restart=False))) == 1


def test_records_after_an_inexact_note_are_rows_as_long_as_they_agree(tmp_path: Path) -> None:
    geometry = {"segment_bytes": 4096}
    bodies = [b"%d" % number + bytes(700) for number in range(20)]
    with penstock.open(tmp_path / "s", environ={}, geometry=geometry) as store:
        IngestProgress(store, tmp_path / "x", {}).begin(rows(*bodies), message_of, restart=False)
        for body in bodies[:12]:
            store.put("t", body)
        store.put("other", bodies[12])
        again = IngestProgress(store, tmp_path / "x", {})
        left = list(again.begin(rows(*bodies), message_of, restart=False))
        assert again.position.rows == 12, "over the ends of segments, up to another's message"
        assert len(left) == 8
        (note,) = (tmp_path / "s" / "penstock").glob("ingest-*")
        assert json.loads(note.read_text())["rows"] == 12
