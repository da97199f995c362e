"""Every way out hands out the same messages, whole stretches at once or one by one, also where bits were flipped."""

import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import SMALL
from tests.damage.stores import flip, read_plainly
from tests.lanes import cases, examples

import penstock
from penstock import Message
from penstock.errors import CorruptionError
from penstock.message import StoredMessage

COUNT = 120
FLIPS = st.lists(
    st.tuples(st.sampled_from(["commitlog", "consumequeue"]), st.floats(0, 1), st.integers(0, 7)),
    max_size=3,
)


@pytest.fixture(
    scope="module", params=["crc32", "crc32+record", "plain crc32", "plain crc32+record"]
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reads") / "store"
    # Of the usual shape only.
    is_plain, checksum = "plain" in request.param, request.param.removeprefix("plain ")
    sizes: dict[str, Any] = {**SMALL, "log.checksum": checksum}
    with penstock.open(root, environ={}, **sizes) as store:
        store.put_many(
            Message(
                ("a", "b" if is_plain else "long-" * 30)[number % 7 == 0], bytes([number % 251]) * (number * 7 % 300),
                queue=number % 2, tag=("", "t", "ключ")[number % 3], keys=[f"k-{number}"][: number % 4],
                properties={"own": "x" * (number % 5 + 1)} if number % 5 else {}, flag=number - 60,
                born_time_ms=None if number % 3 else number,
                born_host="[::1]:80" if number % 11 == 0 and not is_plain else None,
            )
            for number in range(2 * COUNT)
        )  # fmt: skip
    return root


def places(store: penstock.Store) -> list[tuple[str, int]]:
    return [
        (topic, queue) for topic, queues in store.topics(system=True).items() for queue in queues
    ]


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(flips=FLIPS, offset=st.integers(0, 30), limit=st.integers(40, 130))
# The size of a queue's last entry: 16 MiB more than its segment has.
@example(flips=[("consumequeue", 0.0871526404930776, 0)], offset=0, limit=40)
def test_reads_and_columns_agree(
    tmp_path_factory: pytest.TempPathFactory, made: Path, flips: Any, offset: int, limit: int
) -> None:
    root = tmp_path_factory.mktemp("flipped") / "store"
    shutil.copytree(made, root)
    for kind, share, bit in flips:
        files = sorted(path for path in (root / kind).rglob("*") if path.is_file())
        path = files[int(share * 997) % len(files)]
        used = min(path.stat().st_size, 4096)
        flip(path, int(share * (used - 1)) * 8 + bit)
    with penstock.open(root, environ={}, read_only=True) as store:
        for topic, queue in places(store):
            at_once = store.read(topic, queue, offset, limit)
            with read_plainly():
                singly = store.read(topic, queue, offset, limit)
                whole = store.read(topic, queue, store.min_offset(topic, queue), 1 << 20)
            assert at_once == singly
            check_columns(store, topic, queue, whole.messages)
    shutil.rmtree(root)


def check_columns(
    store: penstock.Store, topic: str, queue: int, singly: list[StoredMessage]
) -> None:
    names = ["queue_offset", "body", "tag", "keys", "flag", "born_time", "log_offset"]
    try:
        table = store.to_arrow(topic, queue=queue, columns=names)
    except CorruptionError:
        # It stops where `read` passes over something.
        assert len(singly) < store.max_offset(topic, queue) - store.min_offset(topic, queue)
        return
    found = [
        (m.queue_offset, m.body, m.tag or None, list(m.keys) or None, m.flag, m.born_time_ms,
         m.log_offset)
        for m in singly
    ]  # fmt: skip
    columns = [
        column.cast("int64").to_pylist() if name == "born_time" else column.to_pylist()
        for name, column in zip(names, table.columns, strict=True)
    ]
    assert list(zip(*columns, strict=True)) == found


@pytest.mark.slow
def test_every_byte_of_a_record_spoilt_is_told_by_a_stretch_as_by_one(
    tmp_path: Path, made: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(made, root)
    path = next((root / "commitlog").iterdir())
    with penstock.open(root, environ={}, read_only=True) as store:
        whole = store.read("a", 0, 0, 20).messages
        with path.open("r+b", buffering=0) as log:
            for number in (4, 19):
                start, record = whole[number].log_offset, whole[number].record
                for at, bit in cases(product(range(len(record)), (0, 1, 4, 7))):
                    os.pwrite(log.fileno(), bytes([record[at] ^ 1 << bit]), start + at)
                    at_once = store.read("a", 0, 0, 20)
                    with read_plainly():
                        assert store.read("a", 0, 0, 20) == at_once, (number, at, bit)
                    os.pwrite(log.fileno(), record[at : at + 1], start + at)
        assert store.read("a", 0, 0, 20).messages == whole
