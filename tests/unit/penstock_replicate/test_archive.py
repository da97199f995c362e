"""An archive in a folder: objects appear whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.files import Files
from penstock_replicate.ship.archive import (  # fmt: skip
    FolderArchive,
    folder_of,
    is_url,
    open_archive,
    without_secrets,
)
from penstock_replicate.ship.ship_errors import ArchiveError


def test_objects_are_written_read_listed_and_removed(tmp_path: Path) -> None:
    archive = FolderArchive(Files(), tmp_path / "a" / "b")
    assert archive.names("log") == []
    archive.put("log/x", [b"one", b"two"])
    assert archive.read("log/x", 6) == b"onetwo"
    with pytest.raises(ArchiveError, match="more than 5 bytes"):
        archive.read("log/x", 5)
    with pytest.raises(FileNotFoundError):
        archive.read("log/y", 5)
    archive.put("log/x", [])
    assert archive.read("log/x", 5) == b""
    assert archive.names("log") == ["x"]
    archive.remove("log/x")
    archive.remove("log/x")
    assert archive.names("log") == []


def test_an_object_whose_source_fails_leaves_nothing(tmp_path: Path) -> None:
    archive = FolderArchive(Files(), tmp_path)
    archive.put("log/x", [b"before"])

    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyError("the log")

    with pytest.raises(KeyError):
        archive.put("log/x", chunks())
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["x"]
    assert archive.read("log/x", 10) == b"before"


def test_links_and_folders_are_no_objects(tmp_path: Path) -> None:
    archive = FolderArchive(Files(), tmp_path)
    archive.put("log/x", [b"x"])
    (tmp_path / "log" / "link").symlink_to(tmp_path / "log" / "x")
    (tmp_path / "log" / "folder").mkdir()
    assert archive.names("log") == ["x"]
    with pytest.raises(ArchiveError, match="link"):
        archive.read("log/link", 5)


def test_urls_are_told_from_folders_and_shown_without_secrets(tmp_path: Path) -> None:
    assert is_url("s3://bucket/x")
    assert not is_url("/a/b")
    assert not is_url("file:///a/b")
    assert folder_of("file:///a/b") == Path("/a/b")
    assert without_secrets("sftp://me:word@host:22/x?token=1#y") == "sftp://host:22/x"
    assert without_secrets("sftp://[me:word@host") == "host"
    assert isinstance(open_archive(str(tmp_path), Files()), FolderArchive)
    with pytest.raises(ConfigError, match="empty"):
        open_archive("", Files())
    with pytest.raises(ConfigError, match="within"):
        open_archive(str(tmp_path / "x"), Files(), root=tmp_path)


def test_no_way_leads_into_the_store(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    for way in (root, root / "in", tmp_path / "link" / "in", tmp_path / "x" / ".." / "s" / "in"):
        with pytest.raises(ConfigError, match="within the store's folder"):
            open_archive(str(way), Files(), root=root)
    open_archive(str(tmp_path / "sa"), Files(), root=root)
