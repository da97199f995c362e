# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: binding=False, auto_pickle=False
# cython: embedsignature=True, embedsignature.format=clinic
"""The compiled kernel: the only code that encodes or parses records at speed, and the functions built on it.

The C headers in `_kernel/` do not use Python. The `.pxi` files convert Python objects to pointers and numbers, and hold
a reference to each object for as long as a pointer into it is used.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.errno cimport EIO, errno
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strerror, strlen

from operator import index as operator_index

include "_kernel/build.pxi"
include "_kernel/externs.pxi"
include "_kernel/scan.pxi"
include "_kernel/texts.pxi"
include "_kernel/messages.pxi"
include "_kernel/encode.pxi"
include "_kernel/arrow_rows.pxi"
include "_kernel/gate.pxi"
include "_kernel/copies.pxi"
include "_kernel/append.pxi"
include "_kernel/wake.pxi"
include "_kernel/columns.pxi"
include "_kernel/stored.pxi"
include "_kernel/deliveries.pxi"
include "_kernel/dispatch.pxi"

crc_start()

# Internal classes that hold memory; they are not part of the module's interface.
for _hidden in ("Held", "HeldNumbers", "HeldRows", "Numbers", "Pieces"):
    globals().pop(_hidden)
