"""Fuzz target: checkpoint, progress, clean mark, holder and geometry of any bytes.

The first byte says which of them. Each is taken, passed over, or refused with its name.
"""

import functools
from pathlib import Path

from tests.fuzz.ground import folder

from penstock.contracts.base import Geometry
from penstock.durability.progress import Checkpoint, Progress
from penstock.durability.side_folder import SideFolder, visible_offset
from penstock.errors import PenstockError
from penstock.files import Files
from penstock.format.record import crc32
from penstock.recovery.store_layout import find_geometry


@functools.cache
def _root() -> Path:
    root = folder()
    (root / "penstock").mkdir()
    return root


def target(data: bytes) -> None:
    which, content = (data[0] % 6, data[1:]) if data else (0, b"")
    [_checkpoint, _progress, _sealed_progress, _clean, _holder, _geometry][which](content)


def _checkpoint(content: bytes) -> None:
    (_root() / "checkpoint").write_bytes(content)
    marks = Checkpoint(Files(), _root())
    times = marks.read()
    assert min(times) >= 0
    marks.write(times)
    assert marks.read() == times


def _progress(content: bytes) -> None:
    (_root() / "penstock" / "progress").write_bytes(content)
    try:
        visible_offset(Files(), _root())()
        progress = Progress(Files(), _root())
        progress.read()
    except PenstockError as error:
        assert "progress" in str(error)
        return
    progress.write()
    progress.close()
    assert Progress(Files(), _root()).read().flushed_offset == progress.state.flushed_offset


def _sealed_progress(content: bytes) -> None:
    """As above, with a CRC that is right."""
    slots = (content[:508].ljust(508, b"\0"), content[508:1016].ljust(508, b"\0"))
    _progress(b"".join(slot + crc32(slot).to_bytes(4, "big") for slot in slots))


def _clean(content: bytes) -> None:
    (_root() / "penstock" / "clean").write_bytes(content)
    mark = SideFolder(Files(), _root()).read_clean()
    if mark is not None:
        SideFolder(Files(), _root()).write_clean(mark)
        assert SideFolder(Files(), _root()).read_clean() == mark


def _holder(content: bytes) -> None:
    (_root() / "penstock" / "holder").write_bytes(content)
    assert len(SideFolder(Files(), _root()).read_holder()) <= 4096


def _geometry(content: bytes) -> None:
    (_root() / "penstock" / "geometry.json").write_bytes(content)
    try:
        found = find_geometry(Files(), _root(), {}, Geometry())
    except PenstockError as error:
        assert "geometry.json" in str(error)
        return
    assert found.segment_bytes % 4096 == 0
