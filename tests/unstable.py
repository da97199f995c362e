"""What failed gets one more try, alone: what then passes is `unstable`, and three of them fail the run.

A gate that fails for one test that a busy machine upset stops everybody; one that hides such tests lets them grow. So each
is named in the last lines of the run, and is mended, or left to the night, before the next issue ends.
"""

import subprocess
import sys
from typing import Any

import pytest

UNSTABLE_MAX = 2
# With more failures than that, something is broken, and trying all of them again only takes time.
_TRIED_MAX = 10
_TRY_S = 300


class RetryAlone:
    """Runs the failed tests again when all others have ended, each in a process of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._root = config.rootpath

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Count what passes now as unstable; after the workers have ended, and before the summary is written."""
        terminal: Any = self._plugins.get_plugin("terminalreporter")
        failed = [*terminal.stats.get("failed", ()), *terminal.stats.get("error", ())]
        names = {report.nodeid for report in failed}
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(names) <= _TRIED_MAX:
            return
        terminal.write_line("")
        unstable = {name for name in sorted(names) if self._passes_alone(terminal, name)}
        if len(unstable) > UNSTABLE_MAX:
            terminal.write_line(f"{len(unstable)} tests are unstable, {UNSTABLE_MAX} may be")
            return
        for kind in ("failed", "error"):
            terminal.stats[kind] = [
                report for report in terminal.stats.get(kind, ()) if report.nodeid not in unstable
            ]
        terminal.stats["unstable"] = [report for report in failed if report.nodeid in unstable]
        if unstable == names:
            session.exitstatus = pytest.ExitCode.OK

    def _passes_alone(self, terminal: Any, name: str) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
        try:
            done = subprocess.run(
                command, cwd=self._root, timeout=_TRY_S, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            terminal.write_line(f"FAILED again, alone, for {_TRY_S} s: {name}")
            return False
        if done.returncode:
            terminal.write_line(f"FAILED again, alone: {name}\n{done.stdout[-4000:]}")
        else:
            terminal.write_line(f"unstable: {name} (failed, and passed alone)")
        return not done.returncode
