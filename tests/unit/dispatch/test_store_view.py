"""`StoreView`: log and dispatchers of a store that is not opened."""

from pathlib import Path

import pytest

from penstock.contracts import QueueIndex
from penstock.dispatch.rebuild import Recipe, StoreView
from penstock.files import Files
from penstock.plugins.registry import load_registry
from penstock.testing.kit import SMALL, messages, open_store


def recipe_of(root: Path) -> Recipe:
    found = load_registry().dispatchers
    kinds = [found.get(name) for name in ("consume-queue", "hash-index")]
    return Recipe(root, SMALL, tuple((kind, kind.Options()) for kind in kinds))


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_dispatchers_begun_anew_change_nothing_in_the_store(tmp_path: Path) -> None:
    """They are as those of the store, write under a root of their own, and have nothing yet."""
    root, new_root = tmp_path / "s", tmp_path / "new"
    with open_store(root) as store:
        store.put_many(messages(300))
    before = contents(root)
    view = StoreView.open(Files(), recipe_of(root))
    assert view.log.segments[0].base_offset == 0
    news = view.begin_anew(new_root, view.log)
    (old,) = (each for each in view.dispatchers if isinstance(each, QueueIndex))
    (new,) = (each for each in news if isinstance(each, QueueIndex))
    assert [type(each) for each in news] == [type(each) for each in view.dispatchers]
    assert (len(old.queues()), new.queues(), new.progress) == (6, [], 0)
    new.adopt(old, [(0, 1 << 40)])
    new.flush()
    assert new.queues() == old.queues()
    assert (new_root / "consumequeue").is_dir()
    assert contents(root) == before
    view.close()


def test_nothing_runs_in_the_background_of_a_view(tmp_path: Path) -> None:
    """A dispatcher that starts a thread is named."""
    with open_store(tmp_path):
        pass
    view = StoreView.open(Files(), recipe_of(tmp_path).log_only)
    assert view.dispatchers == []
    with pytest.raises(AssertionError, match="my-thread: no background work"):
        view.context.spawn("my-thread", lambda: None)
