"""The common part of `import` and `ingest`: rows of a source into a store, with a progress bar and a summary."""

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import click

from penstock.errors import MessageError
from penstock.store.store import Store
from penstock_tools.cli.beside import alone, open_to_change, timeout_option
from penstock_tools.cli.output import (
    NOTHING_NEW,
    Bar,
    chosen,
    counted,
    note,
    out_json,
    quiet_option,
    settings_options,
)
from penstock_tools.cli.root import INTERRUPTED, interrupts_wait
from penstock_tools.exchange.importing import Hooks, ImportOptions, ImportSummary, import_stream
from penstock_tools.exchange.text_files import STANDARD

# So many skipped rows are shown, each with its reason.
_SHOWN = 5


def loads(verb: str) -> Callable[[Callable[..., ImportOptions]], Callable[..., int]]:
    """Return a decorator that makes a verb of a function from the verb's own options to those of the import.

    The verb takes the store and the source, and the options that both verbs share.
    """

    def decorate(options_of: Callable[..., ImportOptions]) -> Callable[..., int]:
        @functools.wraps(options_of)
        def command(
            path: str, source: str, as_json: bool, quiet: bool, settings: tuple[str, ...],
            config: str | None, broker_conf: str | None, **given: Any,
        ) -> int:  # fmt: skip
            options = options_of(**given)
            store = functools.partial(open_to_change, path, config, chosen(settings, broker_conf))
            report = _load(verb, store, source, options, quiet=quiet)
            if report is None:
                return INTERRUPTED
            _print_summary(report, path, as_json=as_json, quiet=quiet)
            return 0

        made = quiet_option(settings_options(timeout_option(command)))
        made = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")(made)  # fmt: skip
        for name in ("source", "path"):
            # After the verb's own options, which come first in the help.
            made = click.argument(name, type=click.Path())(made)
        return made

    return decorate


def _load(
    verb: str,
    store_of: Callable[[], AbstractContextManager[Store]],
    source: str,
    options: ImportOptions,
    *,
    quiet: bool,
) -> ImportSummary | None:
    """Store the rows of a file, or of standard input; returns None if that was interrupted."""
    total = Path(source).stat().st_size or None if source != STANDARD else None
    shown = _Shown()
    with (
        _opened(source) as file,
        store_of() as store,
        alone(store, f"{verb} of {Path(source).resolve()}")
        if source != STANDARD
        else nullcontext(),
    ):
        try:
            with Bar(verb, total, "rows", quiet=quiet) as bar:

                def on_progress(done: int, rows: int) -> None:
                    shown.rows = rows
                    bar.set(done, rows)

                hooks = Hooks(on_progress=on_progress, on_skip=shown.skip, guard=interrupts_wait)
                return import_stream(store, file, source, options, hooks)
        except KeyboardInterrupt:
            goes_on = "; the same command continues there" if source != STANDARD else ""
            note(f"interrupted after {counted(shown.rows, 'row')}, all stored{goes_on}")
            return None
        finally:
            shown.print()


def _opened(source: str) -> AbstractContextManager[BinaryIO]:
    if source == STANDARD:
        return nullcontext(sys.stdin.buffer)
    return Path(source).open("rb")


class _Shown:
    """The rows stored and skipped, for the lines that are printed after the progress bar. Not thread-safe."""

    def __init__(self) -> None:
        self.rows = 0
        self._skipped: list[str] = []
        self._more = 0

    def skip(self, where: str, error: MessageError) -> None:
        """Keep the first reasons."""
        if len(self._skipped) < _SHOWN:
            self._skipped.append(f"skipped {where}: {error}")
        else:
            self._more += 1

    def print(self) -> None:
        """Show them."""
        for text in self._skipped:
            note(text)
        if self._more:
            note(f"skipped {counted(self._more, 'row')} more")


def _print_summary(report: ImportSummary, path: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        facts = attrs.asdict(report)
        out_json(path=path, source=facts.pop("path"), **facts)
        return
    if quiet:
        return
    before = f", after {report.stored_before:,} of an earlier run" if report.stored_before else ""
    note(
        f"stored {counted(report.stored, 'message')} in {path}{before}, skipped {counted(report.skipped, 'row')}"
    )
    if report.stored_before and not report.stored:
        note(NOTHING_NEW)
