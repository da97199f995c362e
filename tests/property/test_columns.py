"""The vectorised paths say what the plain ones say."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes import examples
from tests.property.test_kernel_dispatch import plain_add

from penstock._kernel import hash_pieces
from penstock.contracts.base import Geometry
from penstock.files import Files
from penstock.format.columns import Keys, RecordColumns
from penstock.format.hashes import index_hash, java_hash
from penstock.format.properties import decode_properties
from penstock.format.record import RecordFields, encode_record
from penstock_index.index_file import HEADER, Header, IndexFile

NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "", "TAG", "TAGSX"])
VALUES = st.one_of(
    st.sampled_from(["", "x", "a b", " a  b ", "ключ", "\U0001f600", "v\x01w"]), st.text(max_size=9)
)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5)


def text_of(pairs: list[tuple[str, str]], trailing: bool) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    return (text if trailing else text.removesuffix("\x02")).encode("utf-8", "surrogatepass")


def java_hash_plainly(text: str) -> int:
    """Return `String.hashCode` as Java's documentation defines it."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def parsed(texts: list[bytes]) -> RecordColumns:
    """Return records with these properties texts, parsed one behind the other."""
    records = [encode_record(RecordFields(topic=b"t", body=b"", properties=t)) for t in texts]
    starts = [0, *itertools.accumulate(map(len, records))][:-1]
    return RecordColumns.parse(b"".join(records), starts, 0)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(PAIRS, st.booleans()), max_size=6))
def test_property_columns_are_the_decoded_properties(
    rows: list[tuple[list[tuple[str, str]], bool]],
) -> None:
    texts = [text_of(pairs, trailing) for pairs, trailing in rows]
    columns = parsed(texts).properties
    decoded = [decode_properties(text) for text in texts]
    for name in ("TAGS", "UNIQ_KEY", "a"):
        found = columns.named(name.encode())
        seen = dict(
            zip(
                found.rows.tolist(),
                (t.decode("utf-8", "replace") for t in found.texts()),
                strict=True,
            )
        )
        assert seen == {row: pairs[name] for row, pairs in enumerate(decoded) if name in pairs}
    tags = [pairs.get("TAGS", "") for pairs in decoded]
    (codes, keys), tag_keys = columns.indexed(), columns.tag_keys()
    assert codes.tolist() == [java_hash_plainly(tag) for tag in tags]
    expected = [
        (row, index_hash(f"t#{key}"))
        for row, pairs in enumerate(decoded)
        for key in [
            *([pairs["UNIQ_KEY"]] if "UNIQ_KEY" in pairs else []),
            *pairs.get("KEYS", "").split(" "),
        ]
        if key
    ]
    assert list(zip(keys.rows.tolist(), keys.hashes.tolist(), strict=True)) == expected
    assert list(zip(tag_keys.rows.tolist(), tag_keys.hashes.tolist(), strict=True)) == [
        (row, index_hash(f"t#T#{tag}")) for row, tag in enumerate(tags) if tag
    ]


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text(st.characters(), max_size=600), max_size=8))
def test_hashes_are_javas(texts: list[str]) -> None:
    assert [java_hash(text) for text in texts] == [java_hash_plainly(text) for text in texts]
    raw = [text.encode("utf-8", "replace") for text in texts]
    sizes = np.array([len(r) for r in raw], np.int64)
    found = hash_pieces(b"".join(raw), np.cumsum(sizes) - sizes, sizes)
    assert np.frombuffer(found, np.int32).tolist() == [java_hash_plainly(r.decode()) for r in raw]


KEYS = st.lists(
    st.tuples(st.sampled_from([f"t#{n}" for n in range(9)]), st.integers(0, 5000)), max_size=25
)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    batches=st.lists(KEYS, max_size=5),
    old_end=st.sampled_from([0, 1_700_000_000_000]),
    # With many slots the first keys are written, and those after them stored through the map.
    slots=st.sampled_from([7, 20 * 1024]),
)
def test_an_index_file_has_javas_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[str, int]]],
    old_end: int,
    slots: int,
) -> None:
    geometry = Geometry(index_slots=slots, index_entries=40)
    path = tmp_path_factory.mktemp("index") / "file"
    file = Files().create(path)
    file.allocate(geometry.index_file_bytes)
    ours = IndexFile(file, geometry)
    ours.set_header(Header(old_end, old_end, 5, 5, 0, 1))
    java = bytearray(geometry.index_file_bytes)
    HEADER.pack_into(java, 0, *Header(old_end, old_end, 5, 5, 0, 1))
    offset, time_ms = 1000, 1_700_000_000_500
    for batch in batches:
        offsets, times = [], []
        for _, step in batch:
            offset += 100
            time_ms += step
            offsets.append(offset)
            times.append(time_ms)
        hashes = [index_hash(key) for key, _ in batch]
        keys = Keys(np.arange(len(batch)), np.array(hashes, np.int32))
        added = ours.add(keys, np.array(offsets, np.int64), np.array(times, np.int64))
        done = zip(hashes, offsets, times, strict=True)
        assert added == sum(plain_add(java, key, slots, 40) for key in done)
    assert ours.chains_are_valid()
    ours.sync()
    ours.close()
    assert path.read_bytes() == bytes(java)
