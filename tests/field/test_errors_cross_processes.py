"""Errors that a worker process raises arrive in its parent: every class, those of plugins and of third parties too."""

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import attrs
import pytest

import penstock
import penstock_alloc
import penstock_flush
import penstock_index
import penstock_messaging
import penstock_retention
import penstock_spark
import penstock_tools
from penstock.errors import ArgumentError, ArgumentTypeError, StorageError, StoreLockedError

PACKAGES = (
    penstock, penstock_alloc, penstock_flush, penstock_index, penstock_messaging, penstock_retention, penstock_spark,
    penstock_tools,
)  # fmt: skip
# By annotation; any other argument gets an integer.
VALUES: dict[object, object] = {
    str: "a\x1b text",
    Path: Path("/a/b"),
    Iterable[str]: ("a", "b"),
    Iterable[tuple[str, str]]: (("a", "b"),),
    penstock.StoreFailedError: penstock.StoreFailedError("why", 7),
}


def classes() -> Iterator[type[BaseException]]:
    """Yield every error class of the packages, private ones too."""
    seen = set()
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__") or ".testing" in found.name:
                continue
            try:
                module = importlib.import_module(found.name)
            except ImportError:
                # An extra that is not installed.
                continue
            for cls in vars(module).values():
                is_own = inspect.isclass(cls) and cls.__module__ == found.name
                if is_own and issubclass(cls, BaseException) and cls not in seen:
                    seen.add(cls)
                    yield cls


CLASSES = list(classes())


def made(cls: type[BaseException]) -> BaseException:
    """Return an error of that class."""
    if not inspect.isfunction(cls.__init__):
        # Python's own, which takes anything.
        return cls("some text")
    wanted = inspect.signature(cls).parameters.values()
    return cls(*(VALUES.get(each.annotation, 7) for each in wanted))


class TheirError(StorageError):
    """With arguments of its own, as a third party's may have."""

    def __init__(self, code: int, *, hint: str) -> None:
        self.code, self.hint = code, hint
        super().__init__(f"code {code}, {hint}")


class TheirOSError(StorageError, OSError):
    """What Python's own class keeps outside of the attributes."""


class TheirTimeoutError(StorageError, TimeoutError):
    """A second base, and arguments of its own."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"not within {seconds} s")


@attrs.frozen
class TheirSlottedError(StorageError):
    """Without a `__dict__` of its own, and frozen."""

    shard: int
    name: str = attrs.field(kw_only=True)


THEIRS = [
    TheirError(7, hint="try again"),
    TheirOSError(2, "No such file", "/a"),
    TheirTimeoutError(1.5),
    TheirSlottedError(3, name="a"),
]


def attributes(error: BaseException) -> dict[str, object]:
    """Return what a caller can read of an error, its notes too."""
    names = [name for name in dir(error) if not name.startswith("_") or name == "__notes__"]
    return {
        name: repr(value) if name in {"args", "failure"} else value
        for name in names
        if not callable(value := getattr(error, name, None))
    }


def check_same(copied: BaseException, error: BaseException) -> None:
    assert type(copied) is type(error)
    assert copied is not error
    assert (str(copied), attributes(copied)) == (str(error), attributes(error))


def test_the_classes_are_found() -> None:
    own = {cls for cls in CLASSES if issubclass(cls, penstock.PenstockError)}
    assert {getattr(penstock, name) for name in penstock.__all__ if name.endswith("Error")} <= own
    assert {cls.__name__ for cls in own} >= {"DataLossError", "ColumnError", "NumberError"}


@pytest.mark.parametrize(
    "error", [*map(made, CLASSES), *THEIRS], ids=lambda error: type(error).__name__
)
def test_an_error_is_pickled_and_copied_whole(error: BaseException) -> None:
    """Most classes were rebuilt by `cls(text)`, which their `__init__` refuses, so that a process pool broke."""
    error.add_note("a note")
    check_same(copy.copy(error), error)
    check_same(copy.deepcopy(error), error)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        check_same(pickle.loads(pickle.dumps(error, protocol)), error)


def test_a_value_that_cannot_be_pickled_arrives_as_its_text() -> None:
    lock = threading.Lock()
    error = ArgumentTypeError("read", "limit", lock, "a whole number")
    arrived = pickle.loads(pickle.dumps(error))
    assert isinstance(arrived, ArgumentError)
    assert (str(arrived), arrived.value) == (str(error), repr(lock))
    assert copy.copy(error).value is lock


def test_a_copy_of_a_copy_is_still_whole() -> None:
    error = penstock.TopicQueueError("t", 9, 4)
    check_same(copy.deepcopy(copy.copy(pickle.loads(pickle.dumps(error)))), error)


def open_again(path: Path) -> None:
    penstock.open(path, environ={})


@pytest.mark.slow
def test_a_pool_passes_on_what_its_worker_raised(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path, environ={}),
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        pytest.raises(StoreLockedError) as caught,
    ):
        pool.submit(open_again, tmp_path).result()
    assert caught.value.path == tmp_path
