"""The texts of errors on the command line: options and commands, no calls."""

import re
from pathlib import Path

import pytest

from penstock import errors
from penstock.cli.wording import EXTRAS, missing_extra, text_of

ROOT = Path(__file__).parents[3]
PYTHON = re.compile(r"\b\w+=(True|False)\b|\b[a-z_]+\(\)")
# The errors whose Python text names a call or an argument.
IN_PYTHON = [
    errors.ArgumentError("read", "limit", 0, "a whole number, 1 or more"),
    errors.ArgumentTypeError("read", "limit", "x", "a whole number, 1 or more"),
    errors.StoreLockedError(Path("/s"), "process 7"),
    errors.ForeignContentError(Path("/s"), "opening is refused", [("a", "b")]),
    errors.DispatcherFailedError("consume-queue", "no space", 1, 2),
    errors.ReadOnlyError(),
]


@pytest.mark.parametrize("error", IN_PYTHON, ids=lambda error: type(error).__name__)
def test_a_text_has_no_call_in_it(error: Exception) -> None:
    assert PYTHON.search(str(error) + "read()" * isinstance(error, errors.ArgumentError))
    assert not PYTHON.search(text_of(error))
    assert not re.search(r"\b(read|open)\(", text_of(error))


def test_a_text_keeps_its_facts() -> None:
    assert text_of(IN_PYTHON[0]) == "limit 0 is refused: it must be a whole number, 1 or more"
    assert "process 7" in text_of(IN_PYTHON[2])
    assert (
        "commands that only read, such as penstock read and penstock stat, work meanwhile"
        in text_of(IN_PYTHON[2])
    )
    assert "show the rest" in text_of(IN_PYTHON[3])
    assert text_of(errors.ReadOnlyError("the disk is full")) == str(
        errors.ReadOnlyError("the disk is full")
    )
    assert text_of(errors.StoreClosedError()) == str(errors.StoreClosedError())


def test_an_error_of_the_system_is_its_file_and_reason() -> None:
    assert (
        text_of(FileNotFoundError(2, "No such file or directory", "x"))
        == "x: No such file or directory"
    )
    assert text_of(OSError("odd")) == "odd"


def test_a_missing_package_of_an_extra_is_named_and_any_other_is_a_defect() -> None:
    for package, extra in EXTRAS.items():
        error = missing_extra(ModuleNotFoundError("no", name=f"{package}.inner"), ["read", "x"])
        assert (error.package, error.extra) == (package, extra)
        assert str(error).startswith(f"penstock read needs {package}; install it with: pip install")
    assert (
        missing_extra(ModuleNotFoundError("no", name="pyarrow"), ["spark", "stats"]).extra
        == "spark"
    )
    defect = ModuleNotFoundError("no", name="penstock.nowhere")
    with pytest.raises(ModuleNotFoundError) as raised:
        missing_extra(defect, [])
    assert raised.value is defect


def test_every_extra_is_one_and_brings_its_package() -> None:
    given = (ROOT / "pyproject.toml").read_text()
    for package, extra in EXTRAS.items():
        found = re.search(rf"^{extra} = \[(.*)\]$", given, re.MULTILINE)
        assert found is not None, extra
        assert f'"{package}' in found[1], (package, extra)
