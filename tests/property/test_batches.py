"""Every way in makes the same bytes and the same errors."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import SMALL
from tests.lanes import examples

import penstock
from penstock import Message
from penstock.errors import MessageError
from penstock.testing import ManualClock

TOPICS = st.sampled_from(["a", "topic-b", "тема", "", "x/y", "l" * 150])
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
WORDS = st.one_of(st.just(""), st.sampled_from(["t", "two words", "ключ", "\x01", " "]), TEXT)
# A column has keys as one text, in which a space separates them.
KEYS = WORDS.map(lambda text: " ".join(filter(None, text.split(" "))) if text.strip(" ") else text)
ROWS = st.lists(
    st.tuples(TOPICS, st.binary(max_size=300), st.integers(-1, 3), WORDS, KEYS, st.integers(-5, 5)),
    max_size=30,
)
SOUND = st.lists(
    st.tuples(st.sampled_from(["a", "topic-b", "тема"]), st.binary(max_size=300), st.integers(0, 3),
              st.sampled_from(["", "t", "ключ"]), st.sampled_from(["", "k", "two words"]), st.integers(-5, 5)),
    max_size=200,
)  # fmt: skip


def words(key: str) -> list[str]:
    return [word for word in key.split(" ") if word] or [key] * bool(key)


def outcome(root: Path, way: str, rows: list[Any], checksum: str) -> tuple[Any, ...]:
    settings_: dict[str, Any] = {**SMALL, "log.checksum": checksum}
    with penstock.open(root / way, clock=ManualClock(), environ={}, **settings_) as store:
        try:
            if way == "put":
                for topic, body, queue, tag, key, flag in rows:
                    store.put(topic, body, queue=queue, tag=tag, keys=words(key), flag=flag)
            elif way == "put_many":
                store.put_many([Message(t, b, queue=q, tag=g, keys=words(k), flag=f)
                                for t, b, q, g, k, f in rows])  # fmt: skip
            else:
                columns: list[Any] = list(zip(*rows, strict=True)) or [[]] * 6
                kinds = (pa.string(), pa.binary(), pa.int32(), pa.string(), pa.string(), pa.int32())
                names = ("topic", "body", "queue", "tag", "keys", "flag")
                arrays = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
                store.put_arrow(pa.table(arrays, names))
        except MessageError as error:
            return ("error", type(error).__mro__[-4])
        assert not list(store.verify())
    files = [
        path for kind in ("commitlog", "consumequeue", "index")
        for path in sorted((root / way / kind).rglob("*")) if path.is_file()
    ]  # fmt: skip
    return ("stored", *((path.relative_to(root / way), path.read_bytes()) for path in files))


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.one_of(SOUND, ROWS))
def test_all_ways_in_agree(
    tmp_path_factory: pytest.TempPathFactory, checksum: str, rows: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("ways")
    many = outcome(root, "put_many", rows, checksum)
    assert outcome(root, "put_arrow", rows, checksum) == many
    one = outcome(root, "put", rows, checksum)
    # One by one, what came before a refused message is stored; else all three agree.
    assert one == many


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=40))
def test_batches_roll_as_single_messages_do(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    rows = [("t", b"x" * size, 0, "", "", 0) for size in sizes]
    root = tmp_path_factory.mktemp("rolls")
    one = outcome(root, "put", rows, "crc32")
    assert outcome(root, "put_many", rows, "crc32") == one
