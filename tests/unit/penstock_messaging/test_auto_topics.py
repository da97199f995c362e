"""The file that says which topics messages have created."""

from pathlib import Path

import pytest

from penstock.testing import make_context
from penstock_messaging.configuration.auto_topics import AutoTopics


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = AutoTopics(make_context(tmp_path))
    assert file.load() == {}
    file.save({"b": 4, 'ü"': 12})
    assert AutoTopics(make_context(tmp_path)).load() == {"b": 4, 'ü"': 12}
    assert file.path == tmp_path / "penstock" / "auto-topics"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"a": "x"}', b'{"a": []}', b"\xff", b"[" * 100_000, b'{"a": NaN}', b'{"a": Infinity}'])  # fmt: skip
def test_a_file_that_cannot_be_read_is_logged(tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    file = AutoTopics(make_context(tmp_path))
    file.path.write_bytes(raw)
    assert file.load() == {}
    assert "auto-topics cannot be read" in caplog.text
    assert "penstock topic alter" in caplog.text


def test_a_folder_in_its_place_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = AutoTopics(make_context(tmp_path))
    file.path.mkdir()
    assert file.load() == {}
    assert "auto-topics" in caplog.text
