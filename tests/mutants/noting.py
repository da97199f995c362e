"""A plugin of pytest: for each test that passes, how long it took and which lines and blocks ran.

Lines that ran while a fixture of many tests was set up count for all tests of that file that may use such a fixture.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from tests.mutants import tracing

NOTES = "PENSTOCK_MUTANTS_NOTES"


class Notes:
    """Reads and clears the bytes round each test, and writes a line of JSON about it."""

    def __init__(self) -> None:
        self._lines = tracing.shared(os.environ[tracing.LINES])
        self._blocks = tracing.shared(os.environ[tracing.BLOCKS])
        self._file = Path(os.environ[NOTES]).open("w")  # noqa: SIM115 - open as long as pytest runs
        self._trace = tracing.tracer(
            self._lines, json.loads(Path(os.environ[tracing.TABLE]).read_text())
        )
        self._failed = False
        # Of the file whose tests run: the lines of what was set up for several.
        self._path, self._common = "", set[int]()

    def _read(self) -> list[list[int]]:
        return [
            np.flatnonzero(np.frombuffer(hits, np.uint8)).tolist()
            for hits in (self._lines, self._blocks)
        ]

    def _clear(self) -> None:
        for hits in (self._lines, self._blocks):
            np.frombuffer(hits, np.uint8)[:] = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run one test between clearing and reading."""
        path = item.nodeid.partition("::")[0]
        if path != self._path:
            self._path, self._common = path, set()
        self._clear()
        self._failed, began = False, time.monotonic()
        tracing.start(self._trace)
        result = yield
        seconds = time.monotonic() - began
        if not self._failed:
            lines, blocks = self._read()
            if _shares(item):
                lines = sorted(self._common.union(lines))
            noted = {"test": item.nodeid, "seconds": round(seconds, 4), "lines": lines, "blocks": blocks}  # fmt: skip
            self._file.write(json.dumps(noted) + "\n")
            self._file.flush()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Keep the lines that run while something is set up for several tests."""
        result = yield
        if _shares(item):
            self._common.update(self._read()[0])
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out a test that fails or is skipped: it can tell nothing of a mutant."""
        self._failed |= report.outcome != "passed"


def _shares(item: pytest.Item) -> bool:
    """Tell whether a test may use what was set up for several."""
    found = getattr(item, "_fixtureinfo", None)
    kinds = found.name2fixturedefs.values() if found is not None else ()
    return any(each.scope != "function" and each.baseid for kind in kinds for each in kind)


def pytest_configure(config: pytest.Config) -> None:
    """Take notes if the environment says where."""
    if NOTES in os.environ:
        config.pluginmanager.register(Notes(), "penstock-mutants-notes")
