from pathlib import Path

import pytest

from penstock import open as open_store
from penstock.files import Files
from penstock_replicate.master.coverage import read_coverage
from penstock_replicate.wire.frames import CoverageNote


def test_the_ranges_of_a_store_are_read(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.put("t", b"body")
        note = read_coverage(Files(), tmp_path / "store")
    assert note.written == ((0, None, "crc32+record"),)


def test_a_file_that_is_missing_or_not_understood_covers_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_coverage(Files(), tmp_path) == CoverageNote()
    assert not caplog.text
    (tmp_path / "penstock").mkdir()
    for wrong in (
        "{",
        "[]",
        '{"about": {"ranges": [{"start": -1, "stop": 2, "checksum": "x"}], "perhaps": [], "gaps": []}}',
    ):
        (tmp_path / "penstock" / "ranges").write_text(wrong)
        assert read_coverage(Files(), tmp_path) == CoverageNote()
    assert caplog.text.count("cannot be read") == 3
