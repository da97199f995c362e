"""The folder of a store may be a symbolic link that its user made; links within a store are refused."""

from pathlib import Path

import pytest
from tests.lanes import eventually

import penstock
from penstock.errors import NotAStoreError, StoreLockedError, StrayFileError
from penstock.store.store import Store
from penstock_tools.cli.root import run


@pytest.fixture
def link(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to("disk")
    return tmp_path / "data"


def opened(path: Path, *, read_only: bool = False) -> Store:
    return penstock.open(path, read_only=read_only, environ={})


def test_a_store_is_used_through_a_link_as_through_its_own_name(link: Path) -> None:
    """Every call refused it: "it is a symbolic link, or not a folder"."""
    with opened(link) as store:
        store.put("t", b"m", queue=0, keys=["k"])
        assert store.path == link.resolve()
        with pytest.raises(StoreLockedError):
            opened(link.resolve())
        assert opened_and_read(link) == [b"m"]
    assert link.is_symlink()
    assert (link.parent / "disk" / "commitlog").is_dir()
    assert penstock.repair(link, environ={}).steps == ()
    with penstock.open_several(environ={})(link) as store:
        assert len(store.find("k", "t")) == 1


def opened_and_read(path: Path) -> list[bytes]:
    with opened(path, read_only=True) as store:
        eventually(store.topics)
        return [message.body for message in store.read("t", 0).messages]


@pytest.mark.parametrize(
    "line", ["put data t m", "stat data", "verify data --deep", "repair data", "read data t", "topic list data"]
)  # fmt: skip
def test_commands_follow_it_too(link: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(link) as store:
        store.put("t", b"m", queue=0)
    monkeypatch.chdir(link.parent)
    assert run(line.split()) == 0
    assert link.is_symlink()


def test_a_link_to_a_link_is_followed_and_one_that_leads_nowhere_is_refused(link: Path) -> None:
    again, nowhere, loop = (link.with_name(name) for name in ("again", "nowhere", "loop"))
    again.symlink_to(link)
    opened(again).close()
    nowhere.symlink_to("not-mounted")
    loop.symlink_to("loop")
    for path in (nowhere, loop):
        with pytest.raises(NotAStoreError, match="a symbolic link that leads to no folder"):
            opened(path)
    assert not link.with_name("not-mounted").exists()


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config", "penstock"])
def test_a_link_within_a_store_is_refused(link: Path, name: str) -> None:
    opened(link).close()
    inner = link.resolve() / name
    moved = inner.rename(link.with_name("moved")) if inner.exists() else link.with_name("moved")
    moved.mkdir(exist_ok=True)
    inner.symlink_to(moved)
    with pytest.raises((NotAStoreError, StrayFileError), match="symbolic link"):
        opened(link)
