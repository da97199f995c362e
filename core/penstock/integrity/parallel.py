"""Verification in multiple processes, a segment at a time.

Each process opens log and derived files itself, read-only, and checks the segments assigned to it. The findings
are returned in the order of the log. The processes are spawned, never forked, since the caller may have threads,
locks and mapped files.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.contracts.dispatcher import Finding
from penstock.dispatch.store_view import Recipe, StoreView
from penstock.files import Files
from penstock.integrity.verification import Result, Scope, Spread, Tally, Verification

if TYPE_CHECKING:
    from concurrent.futures import Future

# The number of segments queued for each process.
_AHEAD = 2
# How often the caller learns how far the processes are, in seconds.
_REPORT_S = 0.2


class SegmentWorker:
    """Checks segments of a store, one by one, in one process. Not thread-safe.

    Adds the bytes that it has checked to `checked`, a number shared by all processes.
    """

    def __init__(self, recipe: Recipe, scope: Scope, checked: Any = None) -> None:
        self._checked = checked
        files = Files()
        view = StoreView.open(files, recipe)
        self._log, self._scope = view.log, scope
        self._log.rejected, self._log.torn_at = dict(scope.rejected), scope.torn_at
        self._verification = Verification(files, recipe.root, self._log, view.dispatchers)
        self._checkers = self._verification.checkers()

    def start(self) -> list[Finding]:
        """Return the findings in the derived files alone; only one process calls this."""
        return [finding for checker in self._checkers for finding in checker.start()]

    def check(self, base: int) -> Result:
        """Check one segment; a segment that was deleted has no findings."""
        tally = Tally()
        seen = 0

        def on_progress(so_far: Tally) -> None:
            nonlocal seen
            if self._checked is not None:
                with self._checked.get_lock():
                    self._checked.value += so_far.bytes_seen - seen
            seen = so_far.bytes_seen

        segment = self._log.find(base)
        findings = []
        if segment is not None:
            findings = list(
                self._verification.segment(segment, self._checkers, self._scope, tally, on_progress)
            )
        return findings, tally, [checker.seen() for checker in self._checkers]


_process: SegmentWorker | None = None


def _open_worker(recipe: Recipe, scope: Scope, checked: Any) -> None:
    global _process  # noqa: PLW0603 - one worker per process, created before its first segment
    _process = SegmentWorker(recipe, scope, checked)


def _check(base: int) -> Result:
    assert _process is not None
    return _process.check(base)


def spread_over(files: Files, recipe: Recipe) -> Spread | None:
    """Return a function that checks segments in other processes; None if they cannot open the same store."""
    names = [cls.__qualname__ for cls, _ in recipe.dispatchers]
    if type(files) is not Files or any("<locals>" in name for name in names):
        return None

    def spread(
        bases: list[int], scope: Scope, jobs: int, on_bytes: Callable[[int], None]
    ) -> Iterator[Result]:
        import multiprocessing  # noqa: PLC0415 - slow to import, and every store that is opened imports this module
        from concurrent.futures import ProcessPoolExecutor, wait  # noqa: PLC0415 - as above

        context = multiprocessing.get_context("spawn")
        checked = context.Value("q", 0)
        pool = ProcessPoolExecutor(
            min(jobs, len(bases)), context, _open_worker, (recipe, scope, checked)
        )

        def result(future: "Future[Result]") -> Result:
            while not wait([future], _REPORT_S).done:
                on_bytes(checked.value)
            return future.result()

        waiting: deque[Future[Result]] = deque()
        try:
            for base in bases:
                if len(waiting) >= jobs * _AHEAD:
                    yield result(waiting.popleft())
                waiting.append(pool.submit(_check, base))
            while waiting:
                yield result(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    return spread
