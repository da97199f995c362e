"""A store that its program has dropped is closed with a warning, and a second open says who has the first."""

import gc
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock import StoreLockedError
from penstock.store.store import Store
from penstock.testing import InlineWorkers


def opened(path: Path, *, read_only: bool = False) -> Store:
    return penstock.open(path, read_only=read_only, environ={})


@contextmanager
def warned(path: Path) -> Iterator[None]:
    """Expect one warning about a store that was opened in this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    texts = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert len(texts) == 1
    assert f"{path}, opened at {__file__}:" in texts[0]


def test_a_dropped_store_is_closed_cleanly_and_warns(tmp_path: Path) -> None:
    """It kept its lock, its threads and its files until the process ended, without a word."""
    with warned(tmp_path):
        opened(tmp_path).put("t", b"m", queue=0)
    with opened(tmp_path) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert [message.body for message in store.read("t", 0).messages] == [b"m"]


def test_one_that_only_the_garbage_collector_finds_is_closed_too(tmp_path: Path) -> None:
    class Program:
        def __init__(self) -> None:
            self.store, self.itself = opened(tmp_path), self

    with warned(tmp_path):
        Program()
    opened(tmp_path).close()


def test_one_opened_for_reading_warns(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with warned(tmp_path):
        opened(tmp_path, read_only=True)


def test_a_closed_store_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()
        gc.collect()


def test_what_came_from_a_store_keeps_it_open_while_it_is_used(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"m", queue=0)
    with warned(tmp_path):
        consumer = opened(tmp_path).consumer("g", "t", start="earliest")
        gc.collect()
        (message,) = consumer.poll(1, 5)
        message.ack()
        consumer.close()
        del consumer, message
    with warned(tmp_path), opened(tmp_path).transaction() as transaction:
        transaction.put("t", b"n", queue=0)
        del transaction
    with warned(tmp_path):
        assert list(opened(tmp_path).verify()) == []
    with warned(tmp_path):
        assert [message.body for message in opened(tmp_path).scan("t")] == [b"m", b"n"]


def test_a_store_of_a_test_without_threads_is_freed_with_all_that_came_from_it(
    tmp_path: Path,
) -> None:
    """Each kept itself, its consumer and its descriptors until the process ended: explorations ran out of them."""
    store = penstock.open(tmp_path, spawn=InlineWorkers(), environ={})
    made = [weakref.ref(each) for each in (
        store, store.consumer("g", "t"), store.transaction(), store.prepare("t", b"m", group="g"),
    )]  # fmt: skip
    del store
    gc.collect()
    assert [each() for each in made] == [None] * 4


def test_a_second_open_names_this_process_and_where_it_opened_the_store(tmp_path: Path) -> None:
    """The error said "elsewhere", of a store that the same program had open."""
    with opened(tmp_path), pytest.raises(StoreLockedError) as caught:
        opened(tmp_path)
    assert f"already (this process {os.getpid()}, which opened it at {__file__}:" in str(
        caught.value
    )


def test_another_process_is_told_of_another_one(tmp_path: Path) -> None:
    code = "import sys, penstock; penstock.open(sys.argv[1])"
    with opened(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
        )
    assert f"elsewhere (process {os.getpid()}, since" in done.stderr


def test_at_the_end_of_a_process_an_open_store_does_not_wait(tmp_path: Path) -> None:
    code = "import sys, penstock; store = penstock.open(sys.argv[1]); store.put('t', b'm'); store.flush()"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code, tmp_path],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "dropped without a close" in done.stderr
    with opened(tmp_path) as store:
        assert len(store.read("t", 0).messages) == 1
