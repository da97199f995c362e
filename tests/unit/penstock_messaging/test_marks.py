"""The writer's marks: whole or not at all, and no number that it cannot have written."""

import logging
from pathlib import Path

import pytest

from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.format.crc32c import crc32c
from penstock_messaging.groups.marks import Mark, read_marks, usable_marks, write_marks
from penstock_messaging.groups.paths import GroupPaths

MARKS = {("a", 0): Mark(1, 2, 3, 4, 5, -1, 7), ("a", 12): Mark(0), ("ä", 3): Mark(1 << 40)}


@pytest.fixture
def paths(tmp_path: Path) -> GroupPaths:
    """Return those of a group with a folder."""
    made = GroupPaths(tmp_path, "g")
    made.folder.mkdir(parents=True)
    return made


def test_what_is_written_is_read(paths: GroupPaths) -> None:
    assert read_marks(Files(), paths) == {}
    write_marks(Files(), paths, MARKS)
    assert read_marks(Files(), paths) == MARKS


def test_every_flipped_bit_is_found(paths: GroupPaths) -> None:
    write_marks(Files(), paths, MARKS)
    raw = paths.marks.read_bytes()
    for position in range(0, len(raw), 7):
        changed = bytearray(raw)
        changed[position] ^= 1 << position % 8
        paths.marks.write_bytes(changed)
        try:
            assert read_marks(Files(), paths) == MARKS
        except CorruptionError:
            continue
        # Only the line break after the CRC is not covered by it.
        assert position == 8


@pytest.mark.parametrize("text", [
    b"[]", b"{", b'{"a":5}', b'{"a":{"x":{}}}', b'{"a":{"0":{"life":true}}}', b"[" * 100_000,
    b'{"a":{"0":{"life":-1,"epoch":0,"taken":0,"pending":0,"log_end":0,"old":0,"new":0}}}',
])  # fmt: skip
def test_a_hostile_file_with_a_correct_crc_is_not_used(
    text: bytes, paths: GroupPaths, caplog: pytest.LogCaptureFixture
) -> None:
    paths.marks.write_bytes(b"%08x\n" % crc32c(text) + text)
    with caplog.at_level(logging.WARNING):
        assert usable_marks(Files(), paths) == {}
    assert "marks" in caplog.text
