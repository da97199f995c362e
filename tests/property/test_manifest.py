"""The manifest of a clean close: whatever stands in it, a store has what its log and its queue files have."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import SMALL
from tests.lanes import examples

import penstock
from penstock.durability.side_folder import decode_manifest, encode_manifest, manifest_path
from penstock.store.store import Store
from penstock_index.queue_catalog import UNKNOWN, ClosedQueue, decode_summary, encode_summary

PER_FILE, LOG_END = 200, 1 << 40
NOTED: dict[str, Any] = {
    **SMALL, "geometry.queue_entries": 20, "index.consume-queue.summary_from": 1,
    "index.consume-queue.sync_volume_from": 2,
}  # fmt: skip
Model = dict[tuple[str, int], list[bytes]]


@st.composite
def knowns(draw: st.DrawFn) -> ClosedQueue:
    bases = tuple(sorted(draw(st.sets(st.integers(0, 50), max_size=4))))
    files = tuple(base * PER_FILE for base in bases)
    if not files:
        return draw(st.sampled_from([ClosedQueue(()), ClosedQueue((), 0, 0, -1)]))
    ends = st.integers(files[0], files[-1] + PER_FILE)
    low, high = sorted((draw(ends), draw(ends)))
    last = draw(st.integers(-1 if low == high else 0, LOG_END - 1))
    return draw(st.sampled_from([ClosedQueue(files), ClosedQueue(files, low, high, last)]))


KEYS = st.tuples(st.sampled_from(["a", "b", "тема", "x" * 100]), st.integers(0, 65535))
QUEUES = st.dictionaries(KEYS, knowns(), max_size=12)


@pytest.mark.slow
@given(QUEUES)
def test_a_summary_says_what_was_noted(queues: dict[tuple[str, int], ClosedQueue]) -> None:
    assert decode_summary(encode_summary(PER_FILE, queues.items()), PER_FILE, LOG_END) == queues


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(QUEUES, st.data())
def test_a_changed_summary_says_nothing_impossible(
    queues: dict[tuple[str, int], ClosedQueue], data: st.DataObject
) -> None:
    """As only a forger would leave it: neither an error nor a number out of bounds comes of it."""
    changed = bytearray(encode_summary(PER_FILE, queues.items()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        piece = data.draw(st.binary(max_size=9))
        changed[at : at + data.draw(st.integers(0, 9))] = piece
    said = decode_summary(bytes(changed), PER_FILE, LOG_END)
    for (topic, number), known in (said or {}).items():
        assert topic
        assert "/" not in topic
        assert 0 <= number <= 65535
        assert sorted(set(known.bases)) == list(known.bases)
        assert all(base >= 0 and base % PER_FILE == 0 for base in known.bases)
        if known.max_offset != UNKNOWN:
            begin = known.bases[0] if known.bases else 0
            end = known.bases[-1] + PER_FILE if known.bases else 0
            assert begin <= known.min_offset <= known.max_offset <= end
            assert -1 <= known.last < LOG_END


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    decode_manifest(data)
    decode_summary(data, PER_FILE, LOG_END)


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5), st.integers(1, 30)),
    st.tuples(
        st.sampled_from(["reopen", "lose", "flip", "cut", "stale", "remove", "misname"]),
        st.integers(0, 5), st.integers(0, 1 << 16),
    ),
)  # fmt: skip


def key_of(number: int) -> tuple[str, int]:
    return f"t{number % 2}", number // 2


class Life:
    """A store, and a model of what is in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._model: Model = {}
        self._count = 0
        self._stale = encode_manifest("00" * 32, {})
        self._store = self._open()

    def _open(self) -> Store:
        return penstock.open(self._root, environ={}, **NOTED)

    def play(self, step: str, which: int, how: int) -> None:
        if step == "put":
            for _ in range(how):
                body = b"%d" % self._count
                self._store.put(key_of(which)[0], body, queue=key_of(which)[1])
                self._model.setdefault(key_of(which), []).append(body)
                self._count += 1
            return
        self._store.close()
        self._change(step, which, how)
        self._store = self._open()
        # Half of the queues, so that others stay as they were noted.
        self.check(list(self._model)[how % 2 :: 2])

    def _change(self, step: str, which: int, how: int) -> None:
        path = manifest_path(self._root)
        data = path.read_bytes() if path.exists() else self._stale
        if step == "stale":
            path.write_bytes(self._stale)
        elif step in ("flip", "cut"):
            at = how % len(data)
            changed = data[:at] + bytes([data[at] ^ 1 << which]) + data[at + 1 :]
            path.write_bytes(changed if step == "flip" else data[:at])
        elif step == "remove":
            path.unlink(missing_ok=True)
        elif step == "lose":
            topic, queue = key_of(which)
            shutil.rmtree(self._root / "consumequeue" / topic / str(queue), ignore_errors=True)
        elif step == "misname":
            (self._root / "consumequeue" / "t0" / f"x{which}").mkdir(parents=True, exist_ok=True)
        self._stale = data

    def check(self, keys: list[tuple[str, int]]) -> None:
        found = {
            (topic, queue)
            for topic, each in self._store.topics(system=True).items()
            for queue in each
        }
        assert found == set(self._model)
        for topic, queue in keys:
            expected = self._model[topic, queue]
            assert self._store.max_offset(topic, queue) == len(expected)
            assert [message.body for message in self._store.scan(topic, queue=queue)] == expected

    def end(self) -> None:
        self._store.close()
        with penstock.open(self._root, read_only=True, environ={}) as reader:
            found = list(reader.verify(deep=True))
        assert [finding for finding in found if finding.part != "stray"] == []
        self._store = self._open()
        self.check(list(self._model))
        self._store.close()


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=2, max_size=14))
def test_a_store_has_its_messages_whatever_its_manifest_says(
    steps: list[tuple[str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder) / "store")
        for step in steps:
            life.play(*step)
        life.end()
