import random
from collections.abc import Iterator

from penstock_replicate.master.compressing import SAMPLE_BYTES_MIN, CompressionChoice

TEXT = b"some text that repeats " * 3000
NOISE = random.Random(3).randbytes(len(TEXT))


def clock() -> Iterator[float]:
    """Each look is a millisecond later."""
    now = 0.0
    while True:
        now += 0.001
        yield now


def choice(mode: str) -> CompressionChoice:
    times = clock()
    return CompressionChoice(mode, lambda: next(times))


def test_small_data_is_sent_as_it_is() -> None:
    assert not choice("zlib").is_to_try(SAMPLE_BYTES_MIN - 1)
    assert choice("zlib").is_to_try(SAMPLE_BYTES_MIN)
    assert not choice("none").is_to_try(SAMPLE_BYTES_MIN)


def test_it_pays_on_a_slow_line_and_for_what_gets_smaller() -> None:
    slow = choice("auto")
    # Nothing is known of the line.
    assert not slow.is_to_try(len(TEXT))
    slow.note_sent(len(TEXT), 1.0)
    assert slow.is_to_try(len(TEXT))
    assert slow.zipped(TEXT) is not None
    assert slow.is_to_try(len(TEXT))
    assert slow.zipped(NOISE) is None
    assert not slow.is_to_try(len(TEXT))


def test_it_does_not_pay_on_a_fast_line() -> None:
    fast = choice("auto")
    fast.note_sent(len(TEXT), 0.0001)
    assert fast.is_to_try(len(TEXT))
    assert fast.zipped(TEXT) is None
    tries = [fast.is_to_try(len(TEXT)) for _ in range(40)]
    assert tries.index(True) == 31


def test_what_does_not_get_smaller_is_never_sent_compressed() -> None:
    assert choice("zlib").zipped(NOISE) is None
