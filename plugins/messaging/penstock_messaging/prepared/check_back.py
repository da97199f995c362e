"""Asks the program about prepared messages that nobody finished: a broker's check-back, in the writing process.

One background thread, which begins with the first prepared message. A message is checked once its immunity is over, and
then each interval, with the broker's limits: each check writes the message again and counts, and after so many checks
it goes to `TRANS_CHECK_MAX_TIME_TOPIC`. A message of a group without a check-back is not counted: nobody was asked. Nor
is one that the program is just working on, in a `with` block.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.contracts import CheckBack, CheckBacks, Context, Prepared, Stoppable
from penstock.errors import (
    MessageError,
    OffsetError,
    PenstockError,
    PreparedFinishedError,
    StoreClosedError,
    StoreFailedError,
)
from penstock.escape import get_logger
from penstock_messaging.prepared.half_queue import NEVER, OpenHalf
from penstock_messaging.prepared.open_halves import (
    COMMITTED,
    DISCARDED,
    ROLLED_BACK,
    OpenHalves,
)

logger = get_logger(__name__)

_ANSWERS = {"commit": COMMITTED, "rollback": ROLLED_BACK}
_RETRY_MS = 1000


class Checking:
    """Checks the open half messages of one store. Safe from any thread.

    Args:
        context: of the extension.
        given: the check-backs.
        halves: the open half messages.
        handle_of: returns the object that a check-back gets.
        interval_ms: between two checks of a message, and between two times that progress is saved.
        immunity_ms: how old a message is when it is first checked.
        checks_max: how often a message is checked.
    """

    def __init__(
        self,
        context: Context,
        given: CheckBacks | None,
        halves: OpenHalves,
        handle_of: Callable[[OpenHalf], Prepared],
        *,
        interval_ms: int,
        immunity_ms: int,
        checks_max: int,
    ) -> None:
        self._context, self._given = context, given
        self._halves = halves
        self._handle_of = handle_of
        self._interval_ms, self._immunity_ms = interval_ms, immunity_ms
        self._checks_max = checks_max
        self._worker: Stoppable | None = None
        self._guard = threading.RLock()
        self._is_over = False
        self._next_ms = 0
        self._save_ms = 0
        self._trouble = ""
        self._checks = 0

    def callback_of(self, group: str) -> CheckBack | None:
        """Return the check-back of a group; None if there is none."""
        given = self._given
        return given.get(group) if isinstance(given, Mapping) else given

    # --- begin and end

    def expect(self, half: OpenHalf) -> None:
        """Check a half message from now on; an earlier process's is due when its immunity is over, however long ago."""
        now = self._context.clock.monotonic_ms()
        immunity = half.facts.immunity_ms
        immunity_ms = self._immunity_ms if immunity is None else immunity
        age_ms = self._context.clock.time_ms() - half.born_time_ms
        half.due_ms = now + min(max(immunity_ms - age_ms, 0), immunity_ms)
        with self._guard:
            if self._is_over:
                return
            self._start(now)
            is_sooner = half.due_ms < self._next_ms and self.callback_of(half.facts.group)
            worker = self._worker if is_sooner else None
        if worker is not None:
            worker.wake()

    def _start(self, now: int) -> None:
        if self._has_worker():
            return
        self._save_ms = now + self._interval_ms
        made = self._context.spawn("penstock-check-back", self._step)
        if self._has_worker():
            # A signal handler was faster.
            made.stop()
        else:
            self._worker = made

    def _has_worker(self) -> bool:
        return self._worker is not None

    def end(self) -> None:
        """End the thread; a check-back that is being asked ends first."""
        with self._guard:
            self._is_over = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def stats(self) -> dict[str, Any]:
        """Return figures since the store was opened."""
        return {"checks": self._checks, "trouble": self._trouble or None}

    # --- one round

    def _step(self) -> float | None:
        """Check what is due; returns the seconds until the next round, None after a failure that ends all puts."""
        with self._guard:
            self._next_ms = 0
        now = self._context.clock.monotonic_ms()
        try:
            trouble = ""
            for half in self._halves.all():
                if self._is_over:
                    return None
                if half.due_ms <= now:
                    try:
                        self._check(half, now)
                    except MessageError as error:
                        # It stays prepared; the others are checked nevertheless.
                        trouble = f"{half.facts.transaction_id}: {error}"
            if self._save_ms <= now:
                self._halves.save()
                self._save_ms = now + self._interval_ms
            if trouble:
                self._note_trouble(trouble)
            else:
                self._trouble = ""
        except (StoreFailedError, StoreClosedError) as error:
            self._trouble = str(error)
            return None
        except (PenstockError, OSError) as error:
            self._note_trouble(str(error))
            return _RETRY_MS / 1000
        with self._guard:
            asked = [half for half in self._halves.all() if self.callback_of(half.facts.group)]
            self._next_ms = min(self._save_ms, *(half.due_ms for half in asked), NEVER)
            return max(self._next_ms - self._context.clock.monotonic_ms(), 0) / 1000

    def _note_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            logger.warning(
                "prepared messages cannot be checked or finished now (%s); none is lost, and it is tried again",
                text,
            )

    def _check(self, half: OpenHalf, now: int) -> None:
        """Check one half message, or discard it."""
        half.due_ms = now + self._interval_ms
        callback = self.callback_of(half.facts.group)
        if callback is None:
            return
        named = half.facts.transaction_id
        try:
            with self._halves.guard:
                # In one go: no block begins in between.
                if half.in_block or half.outcome:
                    return
                blocks = half.blocks
                is_last = half.facts.checks >= self._checks_max
                if is_last:
                    self._halves.finish(half, DISCARDED, wait=False)
                else:
                    self._halves.check_again(half)
            if is_last:
                logger.warning(
                    "prepared message %s was checked %d times, and is in TRANS_CHECK_MAX_TIME_TOPIC now", named,
                    half.facts.checks
                )  # fmt: skip
                return
            self._checks += 1
            outcome = self._answer(callback, half)
            with self._halves.guard:
                # An answer from before a block does not know what the block has done.
                if outcome is not None and half.blocks == blocks:
                    self._halves.finish(half, outcome, wait=False)
        except PreparedFinishedError:
            # The program was faster; or the check-back has finished it by itself.
            return
        except OffsetError as error:
            # Retention has deleted it: without its record, it can only be dropped.
            logger.warning("prepared message %s is dropped: %s", named, error)
            self._halves.finish(half, ROLLED_BACK, wait=False)

    def _answer(self, callback: CheckBack, half: OpenHalf) -> str | None:
        """Return what the program says; an answer that is none, and an exception, leave the message open."""
        handle = self._handle_of(half)
        try:
            answer: object = callback(handle)
        except BaseException:
            # Also `sys.exit` and a cancelled task: they would end this thread, and nobody was asked any more.
            logger.exception("the check-back failed for %r; it is asked again later", handle)
            return None
        if answer is None:
            return None
        outcome = _ANSWERS.get(answer) if isinstance(answer, str) else None
        if outcome is None:
            logger.error(
                "the check-back returned %r for %r, which is neither 'commit', 'rollback' nor None; it is asked again "
                "later",
                answer, handle,
            )  # fmt: skip
        return outcome
