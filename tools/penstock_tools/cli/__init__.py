"""The `penstock` command; the only part of the kernel that prints.

Data is written to standard output, messages and progress to standard error. Exit codes: 0 success; 1 nothing found,
or a check failed; 2 usage; 3 store in use; 4 cannot read or write; 5 corruption that stops the command;
6 done or not by another process, which did not answer; 130 interrupted; 141 closed pipe.

In reading order: `verbosity` (the option `-v`), `lazy_group` (commands that are imported only to run), `root` (the
command group, errors to exit codes), `wording` (the texts of errors), `output` (output shared by all verbs), `times`
(options that take a time), `contents` (what a store has, when nothing was found), `state` (whether a store is in use),
`store_files` (sizes of a store's files), `loading` (what `import` and `ingest` do alike), `beside` (changing a store
that another process writes), `completion` (names for a shell), `verbs` (one module per verb).
"""

import contextlib
import os
import sys

from penstock.errors import MissingExtraError

# As `root.CANNOT` and `root.CLOSED_PIPE`, which need click.
_CANNOT, _CLOSED_PIPE = 4, 141


def main() -> int:
    """Run the command line; returns the exit code."""
    _replace_closed_streams()
    code = 0
    try:
        code = _run()
        sys.stdout.flush()
    except OSError as error:
        if not code and not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                sys.stderr.write(f"penstock: standard output: {error.strerror}\n")
        # The buffered rest has no reader; the interpreter must not try to write it at exit.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return code or (_CLOSED_PIPE if isinstance(error, BrokenPipeError) else _CANNOT)
    return code


def _replace_closed_streams() -> None:
    """Give streams that were closed when the program started one on which reading, or writing data, is an error.

    Text for people is dropped where standard error is closed.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "r")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _run() -> int:
    try:
        from penstock_tools.cli.completion import complete  # noqa: PLC0415 - click and rich are an extra
        from penstock_tools.cli.root import cli, run  # noqa: PLC0415 - as above

        answered = complete(cli)
        return run(sys.argv[1:]) if answered is None else answered
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(f"{MissingExtraError(str(error.name), 'cli', 'the penstock command')}\n")
        return 2
