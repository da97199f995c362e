"""Encoding without a store: from its settings alone, with the refusals of `put_arrow`."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import SMALL, OpenStore

from penstock.errors import MessageTooLargeError, QueueError, TopicError
from penstock.format.hashes import java_hash
from penstock.staged import Encoder, Encoding, encoding_for, key_hashes
from penstock.testing import SimulatedDisk
from penstock.write.staged_file import StagedFile

PLAIN: dict[str, Any] = {**SMALL, "log.checksum": "crc32"}
ENCODING = Encoding(
    store_host=b"\x7f\0\0\1\0\0\x2a\x9f", crc_property=True, body_bytes_max=1000, record_bytes_max=500
)  # fmt: skip


def table(*bodies: bytes, topic: str = "t", queue: int = 0) -> pa.Table:
    count = len(bodies)
    return pa.table({"topic": [topic] * count, "body": list(bodies), "queue": pa.array([queue] * count, pa.int32())})  # fmt: skip


def test_an_encoding_is_that_of_the_store_as_it_would_be_opened(
    tmp_path: Path, open_small: OpenStore
) -> None:
    path = tmp_path / "store"
    new = encoding_for(path, environ={}, **PLAIN)
    assert (new.record_bytes_max, new.crc_property) == (64 * 1024 - 8, False)
    assert not path.exists()
    with open_small(**{"log.checksum": "crc32"}):
        assert encoding_for(path, environ={}, **PLAIN) == new


def test_records_for_several_stores_fit_into_each(tmp_path: Path, open_small: OpenStore) -> None:
    with open_small(**{"geometry.segment_bytes": 4096}):
        pass
    both = encoding_for(tmp_path / "new", tmp_path / "store", environ={})
    assert both.record_bytes_max == 4096 - 8


def test_what_is_encoded_comes_back_from_its_file() -> None:
    disk, path = SimulatedDisk(), Path("/staged")
    encoder = Encoder(ENCODING, time_ms=lambda: 5)
    writer = encoder.writer(disk, path)
    writer.add(encoder.encode(table(b"a", b"b", queue=3)), group=9)
    writer.finish()
    with StagedFile.read(disk, path) as file:
        (batch,) = file.batches
        assert (batch.group, batch.cursors, len(batch)) == (9, [("t", 3)], 2)
        assert batch.crc_property


def test_a_record_that_fits_into_no_segment_is_refused() -> None:
    with pytest.raises(MessageTooLargeError, match="fit into one segment"):
        Encoder(ENCODING).encode(table(b"x", b"y" * 600))


def test_a_topic_or_queue_that_no_store_has_is_refused() -> None:
    for given, error in ((table(b"x", topic="a/b"), TopicError), (table(b"x", queue=-1), QueueError)):  # fmt: skip
        with pytest.raises(error):
            Encoder(ENCODING).encode(given)


def test_keys_have_javas_hash_and_null_has_0() -> None:
    texts = ["", "a", "größe", "🙂"]
    assert key_hashes(pa.array([*texts, None])).tolist() == [*map(java_hash, texts), 0]
