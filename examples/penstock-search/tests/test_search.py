"""Words are found; crashes, damage and retention leave the index equal to the log."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock_search.index import NoIndexError, path_of, search

WITH: dict[str, Any] = {
    "index": ["consume-queue", "hash-index", "full-text"],
    "geometry.segment_bytes": 65536,
    "retention": [],
}


def open_it(path: Path, **more: Any) -> penstock.Store:
    return penstock.open(path, environ={}, **{**WITH, **more})


def fill(store: penstock.Store) -> None:
    store.put("fruit", b"two boxes of pears", tag="red", keys=["A-1"])
    store.put("fruit", "Äpfel und Birnen".encode(), tag="green")
    store.put("stone", b"three boxes of granite")
    store.put("fruit", b"\xff\xfe no text at all: pears")


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_words_phrases_tags_and_topics_are_found(tmp_path: Path) -> None:
    with open_it(tmp_path / "s") as store:
        fill(store)
        store.topics()
        store.flush()

        def bodies(query: str, topic: str | None = None) -> list[bytes]:
            return [
                store.at(hit.log_offset).body for hit in search(tmp_path / "s", query, topic, 9)
            ]

        assert store.verify() is not None
        assert bodies("pears") == [b"two boxes of pears"], "bytes that are no text are not indexed"
        assert bodies("boxes") == [b"three boxes of granite", b"two boxes of pears"], "newest first"
        assert bodies("boxes", "stone") == [b"three boxes of granite"]
        assert bodies('"boxes of pears"') == [b"two boxes of pears"]
        assert bodies("apfel") == ["Äpfel und Birnen".encode()], "without diacritics too"
        assert bodies("tag:red") == [b"two boxes of pears"]
        assert bodies("box* NOT pears") == [b"three boxes of granite"]
        assert not list(store.verify())


def test_the_verb_prints_what_is_found(tmp_path: Path) -> None:
    with open_it(tmp_path / "s") as store:
        fill(store)
    done = run("search", str(tmp_path / "s"), "boxes", "--json")
    assert done.returncode == 0, done.stderr
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [fact["snippet"] for fact in facts] == [
        "three [boxes] of granite",
        "two [boxes] of pears",
    ]
    shown = run("search", str(tmp_path / "s"), "boxes", "--topic", "stone")
    assert "stone/0@0" in shown.stdout
    assert run("search", str(tmp_path / "s"), "nowhere").returncode == 1
    wrong = run("search", str(tmp_path / "s"), '"open')
    assert wrong.returncode == 2
    assert "cannot be parsed" in wrong.stderr


def test_a_store_without_an_index_says_what_to_do_and_gets_one(tmp_path: Path) -> None:
    with open_it(tmp_path / "s", index=["consume-queue", "hash-index"]) as store:
        fill(store)
    with pytest.raises(NoIndexError):
        search(tmp_path / "s", "pears", None, 1)
    done = run("search", str(tmp_path / "s"), "pears")
    assert done.returncode == 2
    assert "full-text" in done.stderr
    open_it(tmp_path / "s").close()
    assert len(search(tmp_path / "s", "pears", None, 9)) == 1


@pytest.mark.parametrize("harm", [b"", b"garbage" * 1000, None])
def test_a_damaged_or_foreign_file_is_set_aside_and_made_again(
    tmp_path: Path, harm: bytes | None
) -> None:
    with open_it(tmp_path / "s") as store:
        fill(store)
    path = path_of(tmp_path / "s")
    if harm is None:
        import sqlite3  # noqa: PLC0415 - only here

        path.unlink()
        database = sqlite3.connect(path)
        database.execute("create table somebody_elses (x)")
        database.close()
    else:
        path.write_bytes(harm)
    with open_it(tmp_path / "s") as store:
        assert not list(store.verify())
        assert len(search(tmp_path / "s", "boxes", None, 9)) == 2
    # An empty file is a database with nothing in it, as good as a new one.
    assert len(list(path.parent.glob("*.damaged-*"))) == (harm != b"")


@pytest.mark.parametrize("harm", [None, "removed", "garbage"])
def test_a_store_that_is_read_only_or_repaired_is_compared(
    tmp_path: Path, harm: str | None
) -> None:
    """Nobody has loaded the dispatcher there."""
    with open_it(tmp_path / "s") as store:
        fill(store)
        with open_it(tmp_path / "s", read_only=True) as reader:
            assert not list(reader.verify())
    path = path_of(tmp_path / "s")
    if harm == "removed":
        path.unlink()
    elif harm is not None:
        path.write_bytes(b"garbage" * 1000)
    with open_it(tmp_path / "s", read_only=True) as reader:
        assert {found.part for found in reader.verify()} == ({"full-text"} if harm else set())
    index = 'index.use=["consume-queue","hash-index","full-text"]'
    done = run("repair", str(tmp_path / "s"), "--apply", "--set", index)
    assert done.returncode == 0, done.stderr
    assert len(search(tmp_path / "s", "boxes", None, 9)) == 2
    with open_it(tmp_path / "s") as store:
        assert not list(store.verify())


def test_retention_takes_the_words_along(tmp_path: Path) -> None:
    with open_it(
        tmp_path / "s", retention=["keep-last"], **{"retention.keep-last.segments": 2}
    ) as store:
        for number in range(300):
            store.put("t", b"word%d " % number + b"x" * 1000, queue=0)
        store.retain()
        assert store.stats()["segments"] == 2
        assert not search(tmp_path / "s", "word0", None, 1)
        assert search(tmp_path / "s", "word299", None, 1)
        assert not list(store.verify())


WRITER = """
import sys, penstock
settings = {"index": ["consume-queue", "hash-index", "full-text"], "retention": [], "geometry.segment_bytes": 65536}
store = penstock.open(sys.argv[1], environ={}, flush="every", **settings)
number = store.max_offset("t", 0)
while True:
    store.put("t", b"word%d" % number, queue=0)
    number += 1
    if number % 100 == 0:
        store.topics()
        print(number, flush=True)
"""


def test_after_kills_the_index_equals_the_log(tmp_path: Path) -> None:
    root = tmp_path / "s"
    for turn in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(3 + turn):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with open_it(root) as store:
            count = store.max_offset("t", 0)
            assert count >= 300
            assert not list(store.verify())
            assert store.stats()["dispatchers"]["full-text"]["messages"] == count
            assert len(search(root, f"word{count - 1}", None, 9)) == 1
