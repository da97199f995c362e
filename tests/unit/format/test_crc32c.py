"""CRC-32C by its published check value."""

import numpy as np
import pytest

from penstock.format.crc32c import crc32c


@pytest.mark.parametrize(
    ("data", "value"),
    # The check value of the catalogue, and those of RFC 3720, B.4.
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_known_values(data: bytes, value: int) -> None:
    assert crc32c(data) == value
    assert crc32c(memoryview(data)) == value
    assert crc32c(data[5:], crc32c(data[:5])) == value


def test_arrays_are_bytes() -> None:
    assert crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA
