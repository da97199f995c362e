"""A message that is exported and imported is equal field by field, in each format, whatever it holds."""

import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SMALL, append_records
from tests.lanes import examples

import penstock
from penstock import StoredMessage
from penstock.format.names import is_waiting
from penstock.format.properties import without_crc
from penstock.format.record import STORE_IPV6, RecordFields, encode_host
from penstock.store.store import Store
from penstock_tools.exchange import (
    FORMATS,
    export_messages,
    export_stream,
    import_file,
    import_stream,
)
from penstock_tools.exchange.importing import ImportOptions, file_rows
from penstock_tools.exchange.rows import ASSIGNED_ANEW, COLUMNS, parts_of, row_of, row_text
from penstock_tools.exchange.text_files import ColumnNames, kind_of

STREAMS = [f"m.{kind}" for kind in FORMATS if kind != "parquet"]
FILES = (*STREAMS, "m.parquet", "m.ndjson.gz", "m.csv.gz")
# Separators, quotes, controls and marks of each format, where a plain generator seldom puts them.
AWKWARD = st.sampled_from([
    "", " ", "  a ", "a b", '"', '""', ",", "\n", "\r", "\r\n", "\0", "\\", "null", "{}", "[]", "\ufeff", "\u2028", "\u202e",
    "\x1b[31m", "\x7f", "b'x'", "=1+1", "\U0001f600", "-", "0",
])  # fmt: skip
TEXTS = st.one_of(AWKWARD, st.text(max_size=12), st.lists(AWKWARD, max_size=4).map("".join))
BODIES = st.one_of(TEXTS.map(str.encode), st.binary(max_size=40), st.just(b"\xff\xfe" * 20))
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TIMER_DELAY_SEC", "__CRC32#", "WAIT", "a", "", "é"])  # fmt: skip
PAIRS = st.lists(st.tuples(st.one_of(NAMES, TEXTS), TEXTS), max_size=5)
TOPICS = st.one_of(
    st.sampled_from(["t", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "a,b", "x" * 200, 'q"', "\u202e", "ü"]),
    st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1, max_size=9).filter(lambda t: t not in (".", "..")),
)  # fmt: skip
HOSTS = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(-5, 65_535)).map(lambda h: f"{h[0]}:{h[1]}"),
    st.tuples(st.ip_addresses(v=6), st.integers(0, 65_535)).map(lambda h: f"[{h[0]}]:{h[1]}"),
)
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
# Not prepared and not rolled back: no queue has those.
SYS_FLAGS = st.tuples(INT32, st.sampled_from([0, 8])).map(lambda f: f[0] & ~0x3C | f[1])


def text_from(pairs: list[tuple[str, str]], *, is_ended: bool) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    return (text if is_ended else text.removesuffix("\x02")).encode()


PROPERTIES = st.one_of(
    st.builds(lambda pairs, ended: text_from(pairs, is_ended=ended), PAIRS, st.booleans()),
    st.binary(max_size=30),
)
# What waits to be delivered or committed is exported only if its topic is named.
SHOWN_TOPICS = TOPICS.filter(lambda topic: not is_waiting(topic))
RECORDS = st.builds(
    RecordFields,
    topic=SHOWN_TOPICS.map(str.encode), body=BODIES, queue=st.integers(0, 2), flag=INT32, sys_flag=SYS_FLAGS,
    born_time_ms=st.one_of(INT64, st.integers(0, 1 << 41)), born_host=HOSTS.map(encode_host), reconsume_times=INT32,
    prepared_offset=st.integers(0, (1 << 63) - 1), properties=PROPERTIES,
)  # fmt: skip


def opened(path: Path, host: str = "127.0.0.1:10911", checksum: str = "crc32") -> Store:
    given: dict[str, Any] = {
        **SMALL,
        "log.store_host": host,
        "log.checksum": checksum,
        "log.long_topics": True,
    }
    return penstock.open(path, environ={}, **given)


def messages_of(store: Store) -> list[StoredMessage]:
    found = [m for topic in store.topics(system=True) for m in store.scan(topic)]
    return sorted(found, key=lambda m: m.log_offset)


def set_by_a_put(message: StoredMessage) -> dict[str, Any]:
    """Return the fields of a message that an import must restore, read by the message's own attributes."""
    return {
        "topic": message.topic, "queue": message.queue, "queue_offset": message.queue_offset,
        "born_time_ms": message.born_time_ms, "born_host": message.born_host, "tag": message.tag,
        "keys": message.keys, "all_properties": message.all_properties, "flag": message.flag,
        "sys_flag": message.sys_flag & ~STORE_IPV6, "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_offset, "body": message.body, "pairs": pairs_of(message),
    }  # fmt: skip


def pairs_of(message: StoredMessage) -> object:
    """Return the properties text: its pairs, or byte by byte if they do not describe it."""
    text = without_crc(row_text(message))
    tag, keys, others, exact = parts_of(text)
    return (tag, keys, list(others.items())) if exact is None else exact.removesuffix(b"\x02")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=examples(25), deadline=None)
@given(
    records=st.lists(RECORDS, min_size=1, max_size=6),
    hosts=st.tuples(HOSTS, HOSTS),
    checksums=st.tuples(*[st.sampled_from(["crc32", "crc32+record"])] * 2),
)
def test_a_message_is_equal_after_export_and_import(
    name: str, records: list[RecordFields], hosts: tuple[str, str], checksums: tuple[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as home:
        first, second = (
            opened(Path(home) / folder, host, checksum)
            for folder, host, checksum in zip("ab", hosts, checksums, strict=True)
        )
        with first, second:
            append_records(first, *records)
            sent = messages_of(first)
            assert len(sent) == len(records)
            report = export_messages(first, Path(home) / name)
            assert (report.messages, report.unreadable) == (len(records), 0)
            stored = import_file(second, Path(home) / name)
            assert (stored.stored, stored.skipped) == (len(records), 0)
            assert list(map(set_by_a_put, messages_of(second))) == list(map(set_by_a_put, sent))
            if name in STREAMS:
                check_stream(first, Path(home) / "c", name.partition(".")[2])
            # What the store assigns anew is in the file.
            rows = read_back(first, Path(home) / name)
            assert rows == [
                {k: v for k, v in row_of(m)._asdict().items() if k in ASSIGNED_ANEW} for m in sent
            ]


def check_stream(store: Store, path: Path, kind: str) -> None:
    """The same through a pipe."""
    pipe = io.BytesIO()
    export_stream(store, pipe, kind=kind)
    pipe.seek(0)
    with opened(path) as third:
        import_stream(third, pipe, "-", ImportOptions(kind=kind))
        assert list(map(set_by_a_put, messages_of(third))) == list(
            map(set_by_a_put, messages_of(store))
        )


def read_back(store: Store, path: Path) -> list[dict[str, Any]]:
    """Return the columns of a file that an import does not restore."""
    with path.open("rb") as file:
        kind = kind_of(str(path))
        rows = file_rows(file, str(path), kind, ColumnNames(), skip=0, line_bytes_max=1 << 20)
        found = [row.fields for row in rows]
    return [
        {name: _typed(name, fields[name]) for name in COLUMNS if name in ASSIGNED_ANEW}
        for fields in found
        if fields is not None
    ]


def _typed(name: str, value: Any) -> Any:
    """CSV has no types: what an import does not use stays text."""
    return value if name in ("message_id", "store_host") else int(value)
