"""What the append path tells the follower of a batch, and when it is not believed."""

import numpy as np
import pytest

from penstock.lane import Lane, RecordForm, RecordParts
from penstock.recent import Known, Recent, known_batch
from penstock.record import encode_host


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.recent._LEAST", 32)


HOST = encode_host("127.0.0.1:10911")


def batch_of(count: int, start: int = 1000) -> tuple[bytes, Known]:
    form, lane = RecordForm(HOST, crc_property=False, time_ms=lambda: 7), Lane("t", 3, 0)
    parts = [RecordParts(b"x" * number, b"TAGS\x01t\x02") for number in range(count)]
    sizes = np.array([form.size_of(lane, part) for part in parts], np.int64)
    offsets = start + np.cumsum(sizes) - sizes
    data = b"".join(
        form.encode(lane, part, int(size), number, int(offset), 7)
        for number, (part, size, offset) in enumerate(zip(parts, sizes, offsets, strict=True))
    )
    rows = np.zeros(count, np.int64)
    return data, Known(offsets, sizes, np.arange(count), [lane], rows, 7, np.full(count, 116))


def test_only_whole_records_are_handed_out() -> None:
    data, known = batch_of(40)
    recent = Recent()
    recent.add(known)
    last = int(known.log_offsets[-1])
    found = recent.within(1000, last + int(known.sizes[-1]) - 1)
    assert found is not None
    assert len(found.sizes) == 39
    assert recent.within(1000, int(known.log_offsets[1]) - 1) is None
    rest = recent.within(last, last + 4096)
    assert rest is not None
    assert rest.log_offsets.tolist() == [last]
    assert recent.within(1000 + len(data), 1 << 40) is None
    assert recent.within(1000, 1 << 40) is None, "what lies behind is forgotten"


def test_a_follower_that_is_not_there_yet_walks_up_to_what_is_known() -> None:
    recent = Recent()
    recent.add(batch_of(40)[1])
    assert recent.within(900, 1 << 40) is None
    assert recent.within(1000, 1 << 40) is not None


def test_neither_short_batches_nor_too_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.recent._KEPT_MAX", 70)
    recent = Recent()
    recent.add(batch_of(31)[1])
    assert recent.within(1000, 1 << 40) is None
    for number in range(3):
        recent.add(batch_of(32, 1000 + number * 100_000)[1])
    assert recent.within(101_000, 1 << 40) is not None
    assert recent.within(201_000, 1 << 40) is None
    recent.add(batch_of(32, 301_000)[1])
    assert recent.within(301_000, 1 << 40) is not None


@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize("at", [3, 35])
def test_other_bytes_in_the_log_are_not_what_is_known(row: int, at: int) -> None:
    data, known = batch_of(40)
    batch = known_batch(known, data, 1000)
    assert batch is not None
    assert batch.end_offset == 1000 + len(data)
    spoilt = bytearray(data)
    spoilt[int(known.log_offsets[row]) - 1000 + at] ^= 1
    assert known_batch(known, bytes(spoilt), 1000) is None


def test_the_schedule_topic_has_codes_of_its_own() -> None:
    data, known = batch_of(40)
    lanes = [Lane("SCHEDULE_TOPIC_XXXX", 3, 0)]
    batch = known_batch(known._replace(lanes=lanes), data, 1000)
    assert batch is not None
    assert "tag_codes" not in vars(batch)
