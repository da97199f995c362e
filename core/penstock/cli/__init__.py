"""The `penstock` command; the only part of the kernel that prints.

Data goes to standard output, prose and progress to standard error. Exit codes: 0 fine; 1 the answer is
no; 2 usage; 3 store in use; 4 cannot read or write; 5 damage that stops the work; 130 interrupted;
141 closed pipe.

In reading order: `root` (the group of verbs, errors to exit codes), `output` (what all verbs show alike), `verbs` (one
module a verb).
"""

import os
import sys

from penstock.errors import MissingExtraError


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from penstock.cli.root import run  # noqa: PLC0415 - click and rich are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(f"{MissingExtraError(str(error.name), 'cli', 'the penstock command')}\n")
        return 2
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whatever is still buffered has no reader; let the interpreter not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code
