# The digest of the sources that this object was built from; see build.h. Every kernel includes this file.

cdef extern from "_kernel/build.h":
    const char *PENSTOCK_SOURCES


def abi() -> str:
    """Return the digest of the sources that this object was built from."""
    return PENSTOCK_SOURCES.decode("ascii")
