"""A master's files beside the log are read when they have changed, and only if they can be used."""

import logging
from pathlib import Path

import pytest
from tests.unit.penstock_replicate.test_side_names import GOOD

from penstock.files import Files
from penstock_replicate.beside.side_names import SIDE_NAMES
from penstock_replicate.beside.snapshot import SideReader, snapshot

TOPICS = "config/topics.json"


def write_all(root: Path) -> None:
    for name, data in GOOD.items():
        (root / name).parent.mkdir(exist_ok=True)
        Files().write_whole(root / name, data)


def test_a_store_without_files_has_none(tmp_path: Path) -> None:
    assert snapshot(Files(), tmp_path) == {}


def test_all_files_are_returned_in_their_order(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / "config" / "brokerSecrets.json").write_bytes(b"{}")
    found = snapshot(Files(), tmp_path)
    assert found == GOOD
    assert list(found) == list(SIDE_NAMES)


def test_only_what_has_changed_is_returned_again(tmp_path: Path) -> None:
    write_all(tmp_path)
    reader = SideReader(Files(), tmp_path)
    assert reader.changed() == GOOD
    assert reader.changed() == {}
    Files().write_whole(tmp_path / TOPICS, GOOD[TOPICS])
    assert reader.changed() == {}, "the content is the same"
    other = b'{"topicConfigTable":{}}'
    Files().write_whole(tmp_path / TOPICS, other)
    assert reader.changed() == {TOPICS: other}
    assert reader.contents() == {**GOOD, TOPICS: other}


def test_a_file_that_cannot_be_used_is_left_out_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_all(tmp_path)
    reader = SideReader(Files(), tmp_path)
    reader.changed()
    with caplog.at_level(logging.WARNING):
        for data in (b"{", b"{ "):
            Files().write_whole(tmp_path / TOPICS, data)
            assert reader.changed() == {}
    assert len({record.getMessage() for record in caplog.records}) == len(caplog.records)
    assert all(str(tmp_path / TOPICS) in record.getMessage() for record in caplog.records)
    assert 1 <= len(caplog.records) <= 2
    assert reader.contents()[TOPICS] == GOOD[TOPICS], "followers keep what they have"


def test_a_file_that_is_removed_stays_as_it_was_on_followers(tmp_path: Path) -> None:
    write_all(tmp_path)
    reader = SideReader(Files(), tmp_path)
    reader.changed()
    (tmp_path / TOPICS).unlink()
    assert reader.changed() == {}
