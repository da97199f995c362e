"""numpy at its first use, and types of rows that need it only then."""

import subprocess
import sys

import numpy
import pytest

from penstock.format import arrays
from penstock.format.arrays import RowType, np

FIELDS = [("a", ">i8"), ("b", "<u2"), ("c", "|u1")]


def test_np_is_numpy() -> None:
    assert np.zeros is numpy.zeros
    assert np.int64 is numpy.int64
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = np.no_such_name  # type: ignore[attr-defined] # there is none


def test_a_row_type_is_what_numpy_makes_of_the_fields() -> None:
    made, real = RowType(FIELDS), numpy.dtype(FIELDS)
    assert made.dtype == real
    assert made.itemsize == real.itemsize == 11
    assert made.names == real.names
    assert made["b"] == real["b"]
    assert numpy.zeros(2, made.dtype).dtype == real
    assert numpy.frombuffer(bytes(22), made).dtype == real


@pytest.mark.slow
def test_nothing_of_it_imports_numpy_before_its_use() -> None:
    code = (
        "import sys; from penstock.format.arrays import Int64s, RowType, np; t = RowType([('a', '>i8')]); t.itemsize, t.names; "
        "assert 'numpy' not in sys.modules; t.dtype; assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_names_what_is_there() -> None:
    assert all(hasattr(arrays, name) for name in arrays.__all__)
