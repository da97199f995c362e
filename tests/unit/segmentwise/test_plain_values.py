"""Plain values go to another process and come back as they were."""

import pytest

from penstock.errors import PluginError
from penstock.segmentwise.plain_values import pack, unpack


def test_plain_values_survive_being_packed() -> None:
    value = ({("t", 1): 5, "x": None}, [(1, 2)], 1.5, True)
    assert unpack(pack(value)) == value
    with pytest.raises(PluginError, match="is_splittable"):
        pack(object())
