"""Every way in makes the same bytes, those of the plain encoder, and the same errors."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import SMALL
from tests.lanes import examples
from tests.property.test_kernel_writes import I32, I64, NAMES, TAG, TEXT, WORD, plain

import penstock
from penstock import Message
from penstock.errors import MessageError
from penstock.files import Files
from penstock.staged import Encoder, StagedFile, encoding_for
from penstock.store.store import Store
from penstock.testing import ManualClock

# Of a store that is told none.
HOST = "127.0.0.1:10911"


class Row(NamedTuple):
    """A message as columns have it: with keys as one text, in which a space separates them."""

    topic: str = "t"
    body: bytes = b""
    queue: int = 0
    tag: str = ""
    keys: str = ""
    properties: list[tuple[str, str]] | None = None
    flag: int = 0
    born_time: int = 0

    @property
    def words(self) -> list[str]:
        return [word for word in self.keys.split(" ") if word] or [self.keys] * bool(self.keys)

    @property
    def message(self) -> Message:
        return Message(
            self.topic, self.body, queue=self.queue, tag=self.tag, keys=self.words,
            properties=dict(self.properties or []), flag=self.flag, born_time_ms=self.born_time,
        )  # fmt: skip


def rows_of(topics: Any, queues: Any, tags: Any, keys: Any, pairs: Any) -> Any:
    properties = st.one_of(st.none(), st.lists(pairs, max_size=3))
    return st.builds(Row, topics, st.binary(max_size=300), queues, tags, keys, properties, I32, I64)


TOPICS = st.sampled_from(["a", "topic-b", "тема", "l" * 150])
KEYS = st.lists(WORD, max_size=3).map(" ".join)
SOUND = rows_of(TOPICS, st.integers(0, 3), TAG, KEYS, st.tuples(NAMES, TEXT))
# Most of these are refused.
TEXTS = st.one_of(st.sampled_from(["", "t", "two words", "\x01", " "]), st.text(max_size=12))
ODD = rows_of(st.sampled_from(["a", "", "x/y"]), st.integers(-1, 3), TEXTS, TEXTS, st.tuples(NAMES, TEXT))  # fmt: skip
ODD_NAMES = st.sampled_from(["a", "UNIQ_KEY", "", "TAGS", "DELAY", "x\x01", "__CRC32#"])
ODD_PAIRS = rows_of(TOPICS, st.integers(0, 3), TAG, KEYS, st.tuples(ODD_NAMES, TEXTS))
KINDS: dict[str, Any] = {
    "topic": pa.string(), "body": pa.binary(), "queue": pa.int32(), "tag": pa.string(), "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()), "flag": pa.int32(), "born_time": pa.int64(),
}  # fmt: skip


def table_of(rows: list[Row], *, of_lists: bool = False) -> pa.Table:
    """Return the columns, with keys as lists on demand."""
    columns = {name: [getattr(row, name) for row in rows] for name in KINDS}
    kinds = {**KINDS, "keys": pa.list_(pa.string())} if of_lists else KINDS
    if of_lists:
        columns["keys"] = [row.words for row in rows]
    return pa.table({name: pa.array(columns[name], kind) for name, kind in kinds.items()})


def put_staged(store: Store, rows: list[Row], **given_: Any) -> None:
    encoding = encoding_for(store.path, environ={}, **given_)
    encoder, path = Encoder(encoding, ManualClock().time_ms), store.path.with_name("staged")
    writer = encoder.writer(Files(), path)
    writer.add(encoder.encode(table_of(rows)), 7)
    writer.finish()
    for batch in StagedFile.read(Files(), path).batches:
        assert batch.group == 7
        store.lowlevel.put_staged(batch)


AROUND = [Row("x", b"before", keys="k", properties=[("a", "b")], born_time=1)]
WAYS: dict[str, Callable[..., Any]] = {
    "put_many": lambda store, rows, **_: store.put_many([row.message for row in rows]),
    # One by one, what came before a refused message is stored.
    "put": lambda store, rows, **_: [
        store.put(row.topic, row.body, queue=row.queue, tag=row.tag, keys=row.words, flag=row.flag,
                  properties=dict(row.properties or []), born_time_ms=row.born_time) for row in rows
    ],
    "put_arrow": lambda store, rows, **_: store.put_arrow(table_of(rows)),
    # A slice, so that no column begins at its first value.
    "put_arrow, lists of keys": lambda store, rows, **_: store.put_arrow(
        table_of([*AROUND, *rows, *AROUND], of_lists=True)[1:-1]
    ),
    "put_staged": put_staged,
}  # fmt: skip


def outcome(root: Path, way: str, rows: list[Row], checksum: str) -> dict[Path, bytes] | None:
    """Return the files that a way in leaves, None if it was refused."""
    given_: dict[str, Any] = {**SMALL, "log.checksum": checksum}
    place = root / way / "store"
    with penstock.open(place, clock=ManualClock(), environ={}, **given_) as store:
        try:
            WAYS[way](store, rows, **given_)
        except MessageError:
            return None
        assert not list(store.verify())
        check_plainly(store, rows, crc_property=checksum == "crc32+record")
    return {
        path.relative_to(place): path.read_bytes()
        for kind in ("commitlog", "consumequeue", "index") for path in (place / kind).rglob("*") if path.is_file()
    }  # fmt: skip


def check_plainly(store: Store, rows: list[Row], *, crc_property: bool) -> None:
    """Compare the records with those of the plain encoder."""
    found = [message for topic in store.topics(system=True) for message in store.scan(topic)]
    nexts: Counter[tuple[str, int]] = Counter()
    for row, stored in zip(rows, sorted(found, key=lambda each: each.log_offset), strict=True):
        expected = plain(
            row.message, HOST, nexts[row.topic, row.queue], stored.log_offset, ManualClock().time_ms(),
            crc_property=crc_property,
        )  # fmt: skip
        nexts[row.topic, row.queue] += 1
        assert stored.record == expected


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@settings(
    max_examples=examples(80), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(rows=st.one_of(
    st.lists(SOUND, min_size=1, max_size=120), st.lists(SOUND, max_size=9), st.lists(ODD, max_size=20), st.lists(ODD_PAIRS, max_size=20)
))  # fmt: skip
def test_all_ways_in_agree(
    tmp_path_factory: pytest.TempPathFactory, checksum: str, rows: list[Row]
) -> None:
    root = tmp_path_factory.mktemp("ways")
    first, *others = (outcome(root, way, rows, checksum) for way in WAYS)
    assert others == [first] * len(others)


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=40))
def test_batches_roll_as_single_messages_do(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    rows, root = [Row(body=b"x" * size) for size in sizes], tmp_path_factory.mktemp("rolls")
    assert outcome(root, "put_many", rows, "crc32") == outcome(root, "put", rows, "crc32")
