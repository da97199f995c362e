"""The compiled kernel; `penstock.kernel` loads it."""

include "_kernel/build.pxi"
