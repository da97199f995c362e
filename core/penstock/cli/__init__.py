"""The `penstock` command; the only part of the kernel that prints.

Data is written to standard output, messages and progress to standard error. Exit codes: 0 success; 1 nothing found,
or a check failed; 2 usage; 3 store in use; 4 cannot read or write; 5 corruption that stops the command;
130 interrupted; 141 closed pipe.

In reading order: `verbosity` (the option `-v`), `lazy_group` (commands that are imported only to run), `root` (the command group, errors to exit codes),
`wording` (the texts of errors), `output` (output shared by all verbs), `times` (options that take a time), `contents` (what a
store has, when nothing was found), `state` (whether a store is in use), `store_files` (sizes of a store's files),
`completion` (names for a shell), `verbs` (one module per verb), `man_page` (the manual page).
"""

import os
import sys

from penstock.errors import MissingExtraError


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from penstock.cli.completion import complete  # noqa: PLC0415 - click and rich are an extra
        from penstock.cli.root import cli, run  # noqa: PLC0415 - as above

        answered = complete(cli)
        code = run(sys.argv[1:]) if answered is None else answered
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(f"{MissingExtraError(str(error.name), 'cli', 'the penstock command')}\n")
        return 2
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The buffered rest has no reader; the interpreter must not try to write it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code
