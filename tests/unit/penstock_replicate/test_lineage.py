from pathlib import Path

import pytest

from penstock.errors import CorruptionError
from penstock.files import Files
from penstock_replicate.master.lineage import own_lineage


def test_a_master_gets_a_history_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    first = own_lineage(Files(), tmp_path, 4096)
    assert first.role == "master"
    assert [(one.epoch, one.start_offset) for one in first.epochs] == [(1, 4096)]
    assert own_lineage(Files(), tmp_path, 8192) == first


def test_a_file_that_is_not_understood_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "replica").write_text("{")
    with pytest.raises(CorruptionError):
        own_lineage(Files(), tmp_path, 0)
