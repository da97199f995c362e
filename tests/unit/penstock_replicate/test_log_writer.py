"""Segments of a restored log have their full length, and zeros after the end."""

from pathlib import Path

from penstock.files import Files
from penstock_replicate.ship.log_writer import LogWriter


def test_segments_are_full_length_and_end_where_told(tmp_path: Path) -> None:
    writer = LogWriter(Files(), tmp_path, 4096)
    for at in range(8192, 8192 + 6000, 1000):
        size = min(1000, 4096 - at % 4096)
        writer.write(at, b"a" * size)
        if size < 1000:
            writer.write(at + size, b"a" * (1000 - size))
    writer.finish(12_300)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {
        f"{8192:020d}": b"a" * 4096,
        f"{12_288:020d}": b"a" * 12 + bytes(4084),
    }


def test_a_segment_with_nothing_before_the_end_is_removed(tmp_path: Path) -> None:
    writer = LogWriter(Files(), tmp_path, 4096)
    writer.write(0, b"a" * 4096)
    writer.write(4096, b"b")
    writer.finish(4096)
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020d}"]
    LogWriter(Files(), tmp_path, 4096).finish(0)
    given_up = LogWriter(Files(), tmp_path / "x", 4096)
    given_up.give_up()
