"""Finding by key and by time: in the writing process in place, elsewhere by copies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import UnknownTopicError
from penstock.format.record import RecordFields, encode_record
from penstock.message import StoredMessage
from penstock.read.key_search import KeySought, find_keyed
from penstock.testing import ManualClock, open_store
from penstock.testing.kit import SMALL, copy_store

KEYS = ["k", "two words", "\ufffd", "a\ufffd", "ключ", "\U0001f600"]


def filled(root: Path) -> penstock.Store:
    """A store of three messages a millisecond, in one queue that fills several files, with gaps in time."""
    clock = ManualClock()
    store = open_store(root, clock=clock)
    for number in range(3 * SMALL.queue_entries):
        store.put(
            "t",
            b"x" * (number % 50),
            queue=0,
            keys=[*KEYS[number % len(KEYS)].split(), f"n{number}"],
        )
        if number % 3 == 2:
            clock.now_ms += 1 if number % 7 else 500
    return store


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lookup") / "s"
    filled(path).close()
    return path


@pytest.fixture(params=[False, True], ids=["writing", "read-only"])
def store(root: Path, request: pytest.FixtureRequest) -> Iterator[penstock.Store]:
    with open_store(root, read_only=request.param) as opened:
        yield opened


def test_keys_are_found_whatever_their_characters(store: penstock.Store) -> None:
    messages = store.read("t", 0, 0, 1000).messages
    for key in (*KEYS, "two", "words", "words n1", "n7", "n70"):
        wanted = [m for m in messages if f" {key} " in f" {m.all_properties['KEYS']} "]
        assert store.find(key, "t", limit=1000) == wanted, key
        assert store.find(key, "t", limit=2) == wanted[-2:], key
    for key in ("\ud800", "K", "n", "k ", ""):
        assert store.find(key, "t") == [], key
    with pytest.raises(UnknownTopicError):
        store.find("k", "other")


@pytest.mark.parametrize("key", ["order 17", " 17", "17 ", "  "])
def test_a_unique_key_with_spaces_is_found_as_other_keys_are(tmp_path: Path, key: str) -> None:
    """The index was asked for the first word alone, and has this key as a whole; `scan` and `to_arrow` found it."""
    with open_store(tmp_path / "s") as store:
        for number in range(12):
            # Of both kinds, one after the other, among others.
            keys, properties = [*key.split(" "), "more"], {"UNIQ_KEY": key}
            if number % 3:
                keys, properties = ([], properties) if number % 2 else (keys, {})
            store.put(
                "t", b"%d" % number, queue=0, keys=[*filter(None, keys)], properties=properties
            )
        wanted = list(store.scan("t", key=key))
        assert len(wanted) > 5
        assert store.find(key, "t") == store.find(key) == wanted
        for limit in range(1, len(wanted)):
            assert store.find(key, "t", limit=limit) == wanted[-limit:]
        assert store.to_arrow("t", ["body"], key=key)["body"].to_pylist() == [
            m.body for m in wanted
        ]


def check_times(store: penstock.Store, lacking: range = range(0)) -> None:
    """Compare with what the times of all messages say; those that lack count with the next."""
    low, high = store.min_offset("t", 0), store.max_offset("t", 0)
    times = {m.queue_offset: m.store_time_ms for m in store.scan("t", queue=0)}
    assert set(times) == set(range(low, high)) - set(lacking)
    for time_ms in sorted({t + d for t in times.values() for d in (-1, 0, 1)})[::7]:
        at_or_after = (offset for offset, t in times.items() if t >= time_ms)
        first = next(at_or_after, high)
        # What lacks before it may as well be as late.
        while first - 1 in lacking:
            first -= 1
        assert store.offset_at("t", 0, time_ms / 1000) == first
        after = next((offset for offset, t in times.items() if t > time_ms), high)
        while after - 1 in lacking:
            after -= 1
        assert store.offset_at("t", 0, time_ms / 1000, boundary="upper") == max(after - 1, low)


def test_a_time_is_found_as_all_times_say(store: penstock.Store) -> None:
    check_times(store)


@pytest.mark.slow
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("field", [0, 4, 20, 28])
def test_records_that_are_damaged_have_the_time_of_the_next(
    root: Path, tmp_path: Path, field: int, read_only: bool
) -> None:
    """Size, magic, queue offset or log offset of some records in a row are wrong."""
    copy = copy_store(root, tmp_path / "copy")
    with open_store(copy, read_only=True) as store:
        places = {m.queue_offset: m.log_offset for m in store.scan("t", queue=0)}
    lacking = range(90, 103)
    with open_store(copy, read_only=read_only) as store:
        # While it is open: an opening for writing refuses such a log.
        for ordinal in lacking:
            offset = places[ordinal] + field
            path = copy / "commitlog" / f"{offset - offset % SMALL.segment_bytes:020d}"
            with path.open("r+b") as file:
                file.seek(offset % SMALL.segment_bytes)
                file.write(b"\xff\xfe")
        check_times(store, lacking)


def test_candidates_are_held_against_topic_key_and_time() -> None:
    def at(number: int) -> StoredMessage | None:
        if number == 9:
            return None
        fields = RecordFields(
            topic=b"t" if number < 8 else b"u", body=b"", log_offset=number, store_time_ms=number,
            properties=b"KEYS\x01k\x02" if number % 2 else b"",
        )  # fmt: skip
        return StoredMessage(encode_record(fields))

    class Plain:
        is_mapped = False

    log: Any = Plain()
    sought = KeySought("t", "k", 2, 7)
    found = find_keyed(log, at, [9, 8, 7, 7, 6, 5, 3, 1], sought, 2)
    assert [message.log_offset for message in found] == [5, 7], (
        "the newest, in the order of the log"
    )
    assert [m.log_offset for m in find_keyed(log, at, range(9, 0, -1), sought, 9)] == [3, 5, 7]
