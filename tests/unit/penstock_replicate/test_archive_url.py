"""An archive at a URL: in memory, in a folder by fsspec, and on an S3 server of this machine."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.shipped import Shipped, bodies

from penstock.errors import MissingExtraError
from penstock_replicate.ship.archive_url import PART_BYTES, UrlArchive
from penstock_replicate.ship.restoring import restore
from penstock_replicate.ship.ship_errors import ArchiveError


def needed(name: str) -> Any:
    """Import an optional package; in CI, where PENSTOCK_REQUIRE_REMOTE=1, it must be there."""
    if os.environ.get("PENSTOCK_REQUIRE_REMOTE") == "1":
        return __import__(name)
    return pytest.importorskip(name)


fsspec = needed("fsspec")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 server on loopback with an empty bucket; yields a URL in it."""
    needed("s3fs")
    server = pytest.importorskip("moto.server")
    serving = pytest.importorskip("werkzeug.serving")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    application = server.DomainDispatcherApplication(server.create_backend_app)
    made = serving.make_server("127.0.0.1", port, application, threaded=True)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    given = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("ships")
        yield "s3://ships/deep/store"
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        made.shutdown()
        thread.join()
        made.server_close()
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture(params=["memory", "local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "s3":
        yield f"{request.getfixturevalue('s3')}/{tmp_path.name}"
    elif request.param == "local":
        yield f"local://{tmp_path}/by-fsspec"
    else:
        system = fsspec.filesystem("memory")
        system.store.clear()
        yield "memory://deep/store"
        system.store.clear()


def test_objects_are_written_read_listed_and_removed(url: str) -> None:
    archive = UrlArchive(url)
    assert archive.names("log") == []
    with pytest.raises(FileNotFoundError):
        archive.read("log/none", 10)
    large = bytes(range(256)) * (PART_BYTES // 256) + b"and more"
    for name, data in (("log/a", b"small"), ("log/b", large), ("log/c", b""), ("owner", b"x")):
        archive.put(name, [data[at : at + 100_000] for at in range(0, len(data), 100_000)])
        assert archive.read(name, len(data)) == data
        assert b"".join(archive.chunks(name, len(data) + 10)) == data
    assert b"".join(archive.chunks("log/b", PART_BYTES)) == large[:PART_BYTES]
    with pytest.raises(ArchiveError, match="more than 4 bytes"):
        archive.read("log/a", 4)
    assert archive.names("log") == ["a", "b", "c"]
    archive.put("log/a", [b"replaced"])
    assert archive.read("log/a", 100) == b"replaced"
    archive.remove("log/a")
    archive.remove("log/a")
    assert archive.names("log") == ["b", "c"]


def test_an_object_whose_source_fails_is_not_there(url: str) -> None:
    archive = UrlArchive(url)

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield bytes(1 << 20)
        raise KeyError("the log")

    with pytest.raises(KeyError, match="the log"):
        archive.put("log/x", chunks())
    if not url.startswith(("memory", "local")):
        assert archive.names("log") == []


def test_a_store_is_shipped_and_restored(url: str, tmp_path: Path) -> None:
    with Shipped(tmp_path / "store", UrlArchive(url), generations=2) as shipped:
        for number in range(8):
            shipped.put(50, number * 50)
            shipped.ship()
        shipped.shipper = shipped.make_shipper()
        shipped.put(50, 400)
        shipped.ship()
    report = restore(url, tmp_path / "copy")
    assert not report.findings
    assert bodies(tmp_path / "copy") == bodies(tmp_path / "store")


def test_a_url_that_cannot_be_reached_is_an_error_without_secrets(s3: str, tmp_path: Path) -> None:
    with Shipped(tmp_path / "store", UrlArchive("s3://nobucket/x")) as shipped:
        shipped.put(1)
        with pytest.raises(ArchiveError, match=r"s3://nobucket/x.*(credentials|bucket)"):
            shipped.ship()
    assert UrlArchive("memory://name:secret@host/a?key=1").text == "memory://host/a"
    with pytest.raises(ArchiveError, match="check the address"):
        UrlArchive("nothing-such://x")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"penstock\[remote\]"):
        UrlArchive("s3://bucket/x")
