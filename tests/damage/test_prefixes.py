"""Every file of a small store cut short, at every byte where that is cheap: an answer or an error that names the file.

At night readers see every such length, in the gate one of each ten in a row, and the shortest and the
longest.

A reader gets every record that lies whole in what is left; opening for writing mends queues, index and marks, and
refuses a log that is cut (a segment has its whole size from birth).
"""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.damage.stores import GROUP, Made, find_all, make, opened, read_all, told
from tests.lanes import cases

from penstock.errors import CorruptionError, PenstockError, StrayFileError

SEALED: dict[str, Any] = {"log.checksum": "crc32+record"}
# Of the files that a reader looks into; beside it every border of a record or an entry, and one byte to each side.
STRIDE = 401


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module", params=["closed", "crashed"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("prefixes")
    return make(folder / "store", crashed=request.param == "crashed", **SEALED)


def sizes(made: Made, path: Path) -> list[int]:
    """Return the lengths to cut a file to."""
    whole = path.stat().st_size
    kind = path.relative_to(made.path).parts[0]
    if kind in ("config", "penstock"):
        return list(range(0, whole, 1 if whole < 200 else 7))
    if kind == "commitlog":
        borders = {offset - int(path.name) for offset in made.records}
    else:
        # The times of a checkpoint are in its first 40 bytes.
        borders = set(range(0, 48, 8) if kind == "checkpoint" else range(0, whole, 20))
    around = {border + shift for border in borders for shift in (-1, 0, 1)}
    return sorted(size for size in around | {*range(0, whole, STRIDE)} if 0 <= size < whole)


def test_a_reader_of_a_cut_file_gets_what_is_left_or_an_error_that_names_it(store: Made) -> None:
    for path in store.files():
        data, times = path.read_bytes(), path.stat()
        found = sizes(store, path)
        for size in reversed(cases(found, path.name, always={*found[:2], *found[-2:]})):
            os.truncate(path, size)
            with told(f"{path} cut to {size} bytes"):
                check_reading(store, path, size)
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def check_reading(made: Made, path: Path, size: int) -> None:
    kind = path.relative_to(made.path).parts[0]
    try:
        with opened(made.path, read_only=True) as store:
            found = read_all(store)
            findings = list(store.verify())
            if kind == "index":
                find_all(store)
            if kind == "config":
                assert [each[:4] for each in store.groups()] in ([], [(*GROUP, 1, 3)])
    except PenstockError as error:
        assert kind in ("config", "penstock"), "all else can be read around"
        assert path.name in str(error)
        return
    records = {offset: message.record for offset, message in found.items()}
    assert records.items() <= made.records.items()
    lost = made.records.keys() - records.keys()
    assert not lost or findings, "what is missing, verify tells"
    for offset in lost:
        if kind == "commitlog":
            assert int(path.name) <= offset < int(path.name) + 4096
            assert offset + len(made.records[offset]) > int(path.name) + size, "whole, and not read"
        else:
            assert kind == "consumequeue"
            assert 20 * found_ordinal(made, offset) + 20 > size


def found_ordinal(made: Made, offset: int) -> int:
    return int.from_bytes(made.records[offset][20:28], "big")


def test_opening_a_cut_file_for_writing_mends_it_or_refuses_and_says_which(
    store: Made, tmp_path: Path
) -> None:
    for original in store.files():
        chosen = sizes(store, original)
        for size in sorted({0, 1, chosen[len(chosen) // 3], chosen[-1]} & {*chosen, 0, 1}):
            made = store.copy(tmp_path / "copy")
            path = made.path / original.relative_to(store.path)
            os.truncate(path, size)
            log = {p: p.read_bytes() for p in (made.path / "commitlog").iterdir()}
            with told(f"{path} cut to {size} bytes"):
                check_writing(made, path)
            for segment, data in log.items():
                if segment != path:
                    assert (
                        segment.read_bytes()[: made.end - int(segment.name)]
                        == data[: made.end - int(segment.name)]
                    )


def check_writing(made: Made, path: Path) -> None:
    try:
        with opened(made.path, **SEALED) as store:
            found = read_all(store)
            assert {o: m.record for o, m in found.items()} == made.records
            assert not list(store.verify())
    except (CorruptionError, StrayFileError) as error:
        assert path.name in str(error)
        assert path.parent.name in ("commitlog", "penstock", "config")
