# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, binding=False
"""The compiled kernel: one way to lay out a record, one way to take one apart, and what stands on either.

The C headers in `_kernel/` know no Python; the parts here turn Python's objects into pointers and numbers, and hold
a reference to whatever a pointer leads into for as long as it is used.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

include "_kernel/externs.pxi"
include "_kernel/scan.pxi"
include "_kernel/texts.pxi"
include "_kernel/columns.pxi"
include "_kernel/stored.pxi"
include "_kernel/dispatch.pxi"

crc_start()
