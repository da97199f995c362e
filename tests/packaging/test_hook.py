"""The build hook by itself: what it asks for, what it refuses, and when it builds."""

import shlex
import sys
import sysconfig
from pathlib import Path

import hatch_build
import pytest
from hatch_build import KernelBuildError
from tests.packaging.checkouts import build, make_checkout, object_of, run

from penstock import kernel


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout", small=True)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.parametrize(("soabi", "target"), [
    ("cpython-311-x86_64-linux-gnu", "x86_64-linux-gnu.2.28"),
    ("cpython-312-x86_64-linux-musl", "x86_64-linux-musl"),
    ("cpython-311-arm-linux-gnueabihf", "arm-linux-gnueabihf.2.28"),
    ("cpython-311-i386-linux-gnu", "x86-linux-gnu.2.28"),
])  # fmt: skip
def test_zig_builds_for_what_the_interpreter_was_built_for(
    soabi: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"SOABI": soabi}.get)
    assert hatch_build.zig_target() == target


def test_an_interpreter_that_zig_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"SOABI": "cpython-311-darwin"}.get)
    with pytest.raises(KernelBuildError, match=r"cpython-311-darwin.*install a C compiler"):
        hatch_build.zig_target()


@pytest.mark.usefixtures("no_compiler")
def test_zig_is_asked_for_only_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hatch_build, "version_of", {"ziglang": ""}.get)
    assert hatch_build.requirements() == [hatch_build.CYTHON, hatch_build.ZIG]
    with pytest.raises(KernelBuildError, match=r"no C compiler was found: install one"):
        hatch_build.compiler_and_version(Path(), "")
    with pytest.raises(KernelBuildError, match="zig brings no sanitizers"):
        hatch_build.compiler_and_version(Path(), "address")
    monkeypatch.setenv("CC", "ccache gcc")
    assert hatch_build.machine_compiler() == ("ccache", "gcc")
    assert hatch_build.requirements() == [hatch_build.CYTHON]


@pytest.mark.parametrize(("where", "name", "value", "words"), [
    (sys, "platform", "darwin", "Linux only, this is darwin"),
    (sys, "byteorder", "big", "little-endian machines only"),
    (sys.implementation, "name", "pypy", "needs CPython, this is pypy"),
    (sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get, "free-threaded"),
])  # fmt: skip
def test_a_platform_it_is_not_built_for_is_refused(
    where: object, name: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hatch_build.check_platform()
    monkeypatch.setattr(where, name, value)
    with pytest.raises(KernelBuildError, match=words):
        hatch_build.check_platform()


def test_another_system_is_refused_before_anything_of_linux_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hatch_build.py"])
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert hatch_build.main() == 1
    assert capsys.readouterr().err == "Penstock runs on Linux only, this is win32\n"


def test_headers_that_are_divided_as_debian_divides_them_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Zig searches no folder of the machine, so Debian's Python had no `pyconfig.h` there.

    The folder round them is searched last: the C library's headers are those of the compiler's target.
    """
    compiler = hatch_build.machine_compiler()
    if not compiler:
        pytest.skip("this machine has no compiler")
    for name, text in {
        "python3.11/Python.h": "#include <any-linux-gnu/python3.11/pyconfig.h>\n#include <stdio.h>\n",
        "any-linux-gnu/python3.11/pyconfig.h": "#define FOUND puts\n",
        "stdio.h": "#error of another C library\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "use.c").write_text(
        '#include <Python.h>\nint main(void) { return FOUND("") < 0; }\n'
    )
    monkeypatch.setattr(sysconfig, "get_path", {"include": str(tmp_path / "python3.11")}.get)
    run(*compiler, *hatch_build.include_flags(), "-fsyntax-only", "use.c", folder=tmp_path)


@pytest.mark.parametrize(
    ("version", "is_right"),
    [
        ("", False),
        ("0.29.37", False),
        ("3.0.12", False),
        ("3.1.0", True),
        ("3.14.1rc1", True),
        ("4.0", False),
    ],
)
def test_another_cython_than_is_needed_is_refused(
    version: str, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_build, "version_of", {"cython": version}.get)
    if is_right:
        hatch_build.check_tools()
        return
    with pytest.raises(
        KernelBuildError, match=rf"{version or 'none'} is installed: run `pip install"
    ):
        hatch_build.check_tools()


def test_a_compiler_that_is_not_there_is_one_sentence(checkout: Path) -> None:
    told = build(checkout, code=1, given={"CC": "/nowhere/cc"})
    assert told.count("\n") == 1
    assert told.startswith("/nowhere/cc cannot be run (No such file or directory)")


def test_a_compiler_that_fails_has_the_last_word_and_leaves_no_object(checkout: Path) -> None:
    header = checkout / "core" / "penstock" / "_kernel" / "build.h"
    header.write_text(header.read_text() + "\n#error nothing goes\n")
    told = build(checkout, code=1)
    assert "nothing goes" in told
    assert told.endswith("failed: the lines above say why\n")
    assert not list((checkout / "core" / "penstock").glob("_kernel.*.so"))


def test_a_folder_that_cannot_be_written_is_one_sentence(checkout: Path) -> None:
    (checkout / "build").write_text("a file, where a folder belongs")
    told = build(checkout, code=1)
    assert told.count("\n") == 1
    assert "cannot be written" in told


def test_the_digest_is_of_names_and_bytes_of_every_source(checkout: Path) -> None:
    package = checkout / "core" / "penstock"
    seen = {kernel.digest_of_sources(package)}
    header = package / "_kernel" / "build.h"

    def is_new() -> bool:
        before = len(seen)
        seen.add(kernel.digest_of_sources(package))
        return len(seen) > before

    header.touch()
    (package / "_kernel" / "build.h.orig").write_text("what an editor leaves")
    (package / "_kernel" / "__pycache__").mkdir()
    assert not is_new()
    for suffix in ("h", "pxi", "pxd"):
        (package / "_kernel" / f"new.{suffix}").touch()
        assert is_new(), suffix
    (package / "_kernel" / "new.h").rename(package / "_kernel" / "other.h")
    assert is_new()
    header.write_text(header.read_text() + "\n")
    assert is_new()
    pyx = package / "_kernel.pyx"
    pyx.write_text(pyx.read_text() + "\n")
    assert is_new()


def test_each_part_of_the_recipe_counts(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_SANITIZE", raising=False)
    before = hatch_build.recipe_of(checkout)
    assert hatch_build.recipe_of(checkout).build == before.build
    seen = {before.build}

    def is_new() -> bool:
        recipe = hatch_build.recipe_of(checkout)
        is_other = recipe.build not in seen
        seen.add(recipe.build)
        return is_other

    with monkeypatch.context() as patch:
        patch.setattr(hatch_build, "FLAGS", [*hatch_build.FLAGS, "-O3"])
        assert is_new()
    with monkeypatch.context() as patch:
        patch.setattr(hatch_build, "version_of", {"cython": "3.99"}.get)
        assert is_new()
    with monkeypatch.context() as patch:
        patch.setattr(hatch_build, "run", lambda *_: "another compiler 99.1")
        assert is_new()
    with monkeypatch.context() as patch:
        patch.setenv("CC", shlex.join([*before.compiler, "-m64"]))
        assert is_new()
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_SANITIZE", "undefined")
        assert is_new()
    (checkout / "core" / "penstock" / "_kernel" / "new.h").touch()
    assert is_new()


def test_objects_with_sanitizers_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_SANITIZE", raising=False)
    root = Path("/root")
    assert kernel.object_in_checkout(root) == root / "core" / "penstock" / kernel.OBJECT
    monkeypatch.setenv("PENSTOCK_SANITIZE", " undefined, address,")
    apart = root / "build" / "sanitize" / "address-undefined" / kernel.OBJECT
    assert kernel.object_in_checkout(root) == apart


def test_an_object_of_something_else_is_not_taken_for_built(checkout: Path) -> None:
    build(checkout)
    recipe = hatch_build.recipe_of(checkout)
    assert hatch_build.holds(recipe.target, recipe.build)
    data = object_of(checkout).read_bytes()
    for other in (b"", data[: len(data) // 2], data.replace(recipe.build.encode(), b"0" * 64)):
        object_of(checkout).write_bytes(other)
        assert not hatch_build.holds(recipe.target, recipe.build)
