"""Runs the blocks of a page of the documentation, in order, in one folder, and compares what they show.

* `console`: each line after `$` runs in a shell; the lines under it are its output, where `...` stands for
  what varies. A command must end with 0 unless the next one is `echo $?`. A block is one shell: `cd` and `export` last.
* `python`: runs in one namespace for the whole page. A `text` block right after it is what it prints.
* A block right after a line that ends with a file name in backticks and a colon is saved as that file instead.
* `toml` is parsed. Other languages are for reading.

`<!-- skip: next "reason" -->` before a block leaves it out; the reason names the test that runs it, or why none does.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from unittest import SkipTest, mock

from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages that a test of their own runs, in a session of Spark: tests/spark/test_docs.py.
SPARK = sorted([*DOCS.glob("spark*.md"), DOCS / "pipelines.md"])
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if path not in SPARK and "decisions" not in path.parts
)
SECONDS = 120

_FILE_NAME = re.compile(r"`([\w./-]+\.\w+)`[^`\n]*:[ ]*\n\s*\Z")
_END_OF_PYTHON = re.compile(r"```python\n(?:(?!```).)*```\s*\Z", re.DOTALL)
_EXTRAS = re.compile(r"penstock\S*\[([\w,]+)\]")
# What Penstock logs where other work takes the processor, and on no other machine.
_OF_A_BUSY_MACHINE = re.compile(
    r"^(?:WARNING penstock\S*: )?plugin '\S+' took \d+ ms to import\n", re.MULTILINE
)
_MARK = "--- ended with "
_EQUAL = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

RunHere = Callable[[str], tuple[str, int] | None]


class Blocks:
    """The blocks of one page, run in a folder.

    Args:
        folder: where commands run, and files are saved.
        here: runs a command within this process, and returns its output and exit code; None for commands of the shell.
        python: another Python, without what this one has: each block of Python is a script for it.
    """

    def __init__(
        self, folder: Path, here: RunHere = lambda command: None, python: Path | None = None
    ) -> None:
        self.folder = folder
        self.here = here
        self.programs = environment(python)
        self._script = None if python is None else folder / "block.py"
        self.skipped: list[str] = []
        self.ran: list[str] = []
        self._printed = ""
        self._python = PythonEvaluator()

    def run(self, path: Path, wanted: Callable[[Example], bool] = lambda example: True) -> None:
        """Run the blocks of a page that are wanted; raises for the first one that does not do what the page says."""
        for example in parse(path, self):
            if wanted(example):
                try:
                    with contextlib.chdir(self.folder):
                        example.evaluate()
                except SkipTest as reason:
                    self.skipped.append(str(reason))

    def python(self, example: Example) -> None:
        """Run a block of Python, and keep what it prints for the block of text after it."""
        self.ran.append("python")
        if self._save(example):
            return
        if self._script is not None:
            self._script.write_text(example.parsed)
            self._printed = self._shell(f"set -e; python {self._script.name}\n")
        else:
            path = {"PATH": self.programs["PATH"]}
            with (
                contextlib.redirect_stdout(io.StringIO()) as printed,
                mock.patch.dict(os.environ, path),
            ):
                self._python(example)
            self._printed = printed.getvalue()

    def text(self, example: Example) -> str | None:
        """Compare a block of text with what the Python before it has printed."""
        self.ran.append("text")
        return differs(example.parsed, self._printed, "the block above")

    def toml(self, example: Example) -> None:
        """Parse a block of TOML."""
        self.ran.append("toml")
        tomllib.loads(example.parsed)
        self._save(example)

    def console(self, example: Example) -> str | None:
        """Run the commands of a block, and compare the output of those for which the page shows some."""
        self.ran.append("console")
        commands = list(split_commands(example.parsed))
        outputs = self._outputs([command for command, _ in commands])
        following = [command for command, _ in commands[1:]] + [""]
        for (command, want), (got, code), after in zip(commands, outputs, following, strict=True):
            if code and not after.startswith("echo $?"):
                return f"$ {command}\nended with {code}:\n{got}"
            if want and (wrong := differs(want, got, f"$ {command}")):
                return wrong
        return None

    def _save(self, example: Example) -> bool:
        name = _FILE_NAME.search(example.document.text, 0, example.start)
        if name is None:
            return False
        path = self.folder / name[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.parsed)
        return True

    def _outputs(self, commands: list[str]) -> Iterator[tuple[str, int]]:
        """Return the output and the exit code of each command; those in a row that the shell takes share one."""
        waiting: list[str] = []
        for command in commands:
            found = (check_install(command), 0) if is_install(command) else self.here(command)
            if found is None:
                waiting.append(command)
                continue
            yield from self._in_shell(waiting)
            waiting = []
            yield found
        yield from self._in_shell(waiting)

    def _shell(self, script: str) -> str:
        """Return what a script prints; ends it with all that it has started if it takes too long."""
        with subprocess.Popen(
            ["bash", "-c", script], cwd=self.folder, env=self.programs, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        ) as shell:  # fmt: skip
            try:
                return _OF_A_BUSY_MACHINE.sub("", shell.communicate(timeout=SECONDS)[0])
            finally:
                # Nothing of it stays, not even what it left in the background.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)

    def _in_shell(self, commands: list[str]) -> Iterator[tuple[str, int]]:
        if not commands:
            return
        lines = [
            f'{command}\n_code=$?; printf "\\n{_MARK}%s\\n" $_code; (exit $_code)'
            for command in commands
        ]
        printed = self._shell("\n".join(lines))
        parts = re.split(rf"\n{_MARK}(\d+)\n", printed)
        assert len(parts) == 2 * len(commands) + 1, f"{commands} left the shell:\n{printed}"
        for output, code in zip(parts[:-1:2], parts[1::2], strict=True):
            yield output, int(code)


def environment(python: Path | None = None) -> dict[str, str]:
    """Return the environment of a command: a Python's programs first, wide tables, output in the order of writing."""
    path = f"{(python or Path(sys.executable)).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    given = {"PATH": path, "COLUMNS": "100", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    kept = os.environ | given
    if python is not None:
        kept = {
            name: text for name, text in kept.items() if name not in ("PYTHONPATH", "PYTHONHOME")
        }
    return kept


def parse(path: Path, blocks: Blocks) -> Document:
    """Return the page with all its blocks, each with what runs it."""
    parsers: list[Callable[[Document], Iterable[Region]]] = [
        CodeBlockParser("python", blocks.python),
        CodeBlockParser("console", blocks.console),
        CodeBlockParser("toml", blocks.toml),
        _of_python(blocks),
        SkipParser(),
    ]
    return Sybil(parsers, path=str(path.parent)).parse(path)


def _of_python(blocks: Blocks) -> Callable[[Document], Iterable[Region]]:
    """Return a parser of the blocks of text that directly follow a block of Python."""
    parser = CodeBlockParser("text", blocks.text)

    def follows(document: Document) -> Iterable[Region]:
        for region in parser(document):
            if _END_OF_PYTHON.search(document.text, 0, region.start):
                yield region

    return follows


def split_commands(block: str) -> Iterator[tuple[str, str]]:
    """Return each command of a console block, with the output that the page shows."""
    command, shown, is_open = "", "", False
    for line in block.splitlines():
        if is_open:
            command += f"\n{line.removeprefix('> ')}"
        elif line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        else:
            shown += f"{line}\n"
            continue
        is_open = command.endswith("\\") or has_open_document(command)
    yield command, shown


def has_open_document(command: str) -> bool:
    """Return whether a command's here-document lacks its last line."""
    begun = re.search(r"<<'?(\w+)'?", command)
    return begun is not None and not command.endswith(f"\n{begun[1]}")


def differs(want: str, got: str, what: str) -> str | None:
    """Return how an output differs from what the page shows; None if it does not."""
    if doctest.OutputChecker().check_output(want, got, _EQUAL):
        return None
    return f"{what}\nthe page shows:\n{want}\nit is:\n{got}"


def is_install(command: str) -> bool:
    """Return whether a command installs packages, which the tests of the page have already."""
    return command.startswith("pip install ")


def check_install(command: str) -> str:
    """Check that the extras which a command installs exist; tests/packaging/test_readme.py installs by such a line."""
    known = set(metadata.metadata("penstock").get_all("Provides-Extra") or ())
    for named in _EXTRAS.findall(command):
        assert set(named.split(",")) <= known, f"{command}: the extras are {sorted(known)}"
    assert shlex.split(command)
    return ""
