"""Where queues begin and end, noted at a clean close: read back exactly, or not at all."""

import pytest

from penstock_index.queue_summary import (
    UNKNOWN,
    ClosedQueue,
    decode_summary,
    differences,
    encode_summary,
)

PER_FILE, LOG_END = 10, 1000
QUEUES = {
    ("a", 0): ClosedQueue((0, 10), 3, 15, 900), ("a", 7): ClosedQueue((20,), 0, UNKNOWN, -1), ("größe", 1): ClosedQueue((), 0, 0, -1),
}  # fmt: skip


def test_what_was_noted_is_read_back() -> None:
    data = encode_summary(PER_FILE, reversed(QUEUES.items()))
    assert decode_summary(data, PER_FILE, LOG_END) == QUEUES
    assert decode_summary(encode_summary(PER_FILE, []), PER_FILE, LOG_END) == {}


def test_of_other_sizes_or_a_shorter_log_it_says_nothing() -> None:
    data = encode_summary(PER_FILE, QUEUES.items())
    assert decode_summary(data, PER_FILE + 1, LOG_END) is None
    assert decode_summary(data, PER_FILE, 900) is None


@pytest.mark.parametrize("size", [0, 5, 30, 60, -1])
def test_cut_short_or_longer_it_says_nothing(size: int) -> None:
    data = encode_summary(PER_FILE, QUEUES.items())
    assert decode_summary(data[:size], PER_FILE, LOG_END) is None
    assert decode_summary(data + b"\0", PER_FILE, LOG_END) is None


@pytest.mark.parametrize(
    "known", [ClosedQueue((10, 0), 3, 15, 9), ClosedQueue((5,), 5, 9, 9), ClosedQueue((0,), 3, 11, 9), ClosedQueue((0,), 5, 3, 9), ClosedQueue((0,), 0, 5, -1), ClosedQueue((0,), 0, 5, LOG_END)]
)  # fmt: skip
def test_what_no_store_has_is_not_believed(known: ClosedQueue) -> None:
    data = encode_summary(PER_FILE, [(("t", 0), known)])
    assert decode_summary(data, PER_FILE, LOG_END) is None


def test_what_differs_is_said_of_each_queue() -> None:
    found = {("a", 0): ClosedQueue((0, 10), 3, 16, 900), ("a", 7): ClosedQueue((20,), 0, 25, 5), ("new", 0): ClosedQueue(())}  # fmt: skip
    texts = list(differences(QUEUES, iter(found.items())))
    assert texts == ["queue a/0 ends at 16, not at 15", "queue new/0 is not in the summary", "queue größe/1 does not exist"]  # fmt: skip
    others = {
        **QUEUES,
        ("a", 0): ClosedQueue((0,), 3, 15, 900),
        ("größe", 1): ClosedQueue((), 0, 0, 5),
    }
    assert list(differences(QUEUES, iter(others.items()))) == [
        "queue a/0 has other files than the summary states",
        "queue größe/1 begins at 0 with other records than the summary states",
    ]
    assert list(differences(QUEUES, iter(QUEUES.items()))) == []
