"""The compiled kernel that is loaded is the one of these sources; `tests/packaging/test_loading.py` has what is refused."""

import sys
from pathlib import Path

import penstock
from penstock import _kernel, kernel

PACKAGE = Path(kernel.__file__).parent


def checkout(folder: Path) -> Path:
    """Make the sources of a kernel; returns the package's folder."""
    package = folder / "core" / "penstock"
    (package / "_kernel").mkdir(parents=True)
    (package / "_kernel.pyx").write_text("cdef int a")
    (package / "_kernel" / "record.h").write_text("int b;")
    (package / "_kernel" / "notes.txt").write_text("no source")
    return package


def test_the_kernel_that_is_loaded_was_built_from_the_sources_beside_it() -> None:
    assert sys.modules[kernel.NAME] is _kernel
    assert penstock._kernel is _kernel
    assert _kernel.abi() == kernel.digest_of_sources(PACKAGE)
    kernel.load()
    assert sys.modules[kernel.NAME] is _kernel


def test_the_digest_is_of_names_and_bytes_of_the_sources_alone(tmp_path: Path) -> None:
    package = checkout(tmp_path)
    digest = kernel.digest_of_sources(package)
    (package / "_kernel" / "notes.txt").write_text("changed")
    assert kernel.digest_of_sources(package) == digest
    (package / "_kernel" / "record.h").rename(package / "_kernel" / "other.h")
    renamed = kernel.digest_of_sources(package)
    (package / "_kernel" / "other.h").write_text("int c;")
    assert len({digest, renamed, kernel.digest_of_sources(package)}) == 3
