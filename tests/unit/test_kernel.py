"""Loading the compiled kernel: only the object that belongs to these modules, wherever it lies."""

import os
import sys
from pathlib import Path

import pytest

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


def test_a_checkout_without_an_object_names_the_command_that_builds_it(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"is missing; run `.* hatch_build.py`"):
        kernel._from_checkout(checkout(tmp_path))


def test_an_installed_package_for_another_python_says_which_objects_it_has(tmp_path: Path) -> None:
    (tmp_path / "_kernel.cpython-399-other.so").write_bytes(b"")
    with pytest.raises(ImportError, match=r"found: _kernel.cpython-399-other.so"):
        kernel._from_wheel(tmp_path)


def test_an_installed_object_must_have_the_digest_that_is_noted_beside_it(tmp_path: Path) -> None:
    (tmp_path / kernel.OBJECT).write_bytes(b"")
    assert kernel._from_wheel(tmp_path)[1] == "nothing"
    (tmp_path / kernel.ABI).write_text("0123\n")
    path, expected, _ = kernel._from_wheel(tmp_path)
    assert (path, expected) == (tmp_path / kernel.OBJECT, "0123")


def test_an_object_out_of_a_zip_is_copied_once_under_the_digest_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = kernel.copy_out(b"object")
    assert path.read_bytes() == b"object"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    inode = path.stat().st_ino
    assert kernel.copy_out(b"object").stat().st_ino == inode
    path.write_bytes(b"")
    assert kernel.copy_out(b"object").read_bytes() == b"object"


def test_a_folder_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"penstock-{os.getuid()}").mkdir()
    (tmp_path / f"penstock-{os.getuid()}").chmod(0o777)
    path = kernel.copy_out(b"object")
    try:
        assert path.parent == Path("/proc/self/fd")
        assert path.read_bytes() == b"object"
    finally:
        os.close(int(path.name))


def test_an_object_with_sanitizers_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SANITIZE", " undefined,address,")
    assert kernel.sanitizers() == "address,undefined"
    found = kernel.object_in_checkout(Path("/checkout"))
    assert found.parent == Path("/checkout/build/sanitize/address-undefined")
    monkeypatch.delenv("PENSTOCK_SANITIZE")
    assert kernel.object_in_checkout(Path("/checkout")).parent == Path("/checkout/core/penstock")
