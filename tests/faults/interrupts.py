"""Ctrl-C at a chosen place: the n-th at which CPython looks for signals in Penstock's own code.

It looks after a call, at a jump back and where a function begins; at no other instruction.
"""

import itertools
import opcode
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

OURS, SIMULATED = ("/core/penstock/", "/tools/", "/plugins/"), "/core/penstock/testing/"
# The store's own clean-up after an exception: one interrupt is what a person sends, not two within a microsecond.
LOOKS = {
    opcode.opmap[name]
    for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")
    if name in opcode.opmap
}
LOAD_CONST, SWAP = opcode.opmap["LOAD_CONST"], opcode.opmap["SWAP"]
CLEANING = {
    "_complete_or_undo",
    "_complete_or_undo_batch",
    "repair_after_interrupt",
    "forget",
    "_forget",
}


class Interrupt:
    """Raises before instruction `number` of Penstock, counted from the call on, as a signal handler does.

    With `act`, it calls that instead.
    """

    def __init__(
        self,
        number: int,
        error: type[BaseException] = KeyboardInterrupt,
        act: Callable[[], object] | None = None,
    ) -> None:
        self.number, self.left, self.error, self.act = number, number, error, act
        self.place = ""
        self._before: dict[FrameType, int] = {}

    def during(self, job: Callable[[], object]) -> bool:
        """Do a job; say whether it was interrupted."""
        sys.settrace(self._entered)
        try:
            job()
        except self.error:
            return True
        finally:
            sys.settrace(None)
            self._before.clear()
        # Swallowed counts as not interrupted only if it was never raised.
        assert self.left > 0 or self.act, f"the interrupt at {self.place} was swallowed"
        return self.left <= 0

    def _entered(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not any(part in name for part in OURS) or frame.f_code.co_name in {"__del__", *CLEANING}:
            return None
        if SIMULATED in name:
            return None  # A call of the simulated disk is one of the system: a signal waits for its end.
        if frame.f_back is not None and frame.f_back.f_code.co_name == "__del__":
            return None  # Python itself swallows what is raised there
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode":
            return self._stepped
        at, code = frame.f_lasti, frame.f_code.co_code
        # Three constants are the way out of a `with`: what ended its body belongs to the body.
        # A value that it returns is moved out of the way first.
        way_out = at + 2 * (code[at] == SWAP)
        leaves = list(code[way_out : way_out + 6 : 2]) == [LOAD_CONST] * 3
        before, self._before[frame] = self._before.get(frame), code[at]
        if before in LOOKS and not leaves:
            self.left -= 1
            if self.left == 0:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                if self.act is None:
                    raise self.error
                self.act()
        return self._stepped


def everywhere(step: int, *, more_than: int = 0, **options: Any) -> Iterator[Interrupt]:
    """Yield an interrupt for each `step`-th place of a job, up to the first one that the job's end comes before.

    There must be more places than so many: the job is the one that was meant.
    """
    for number in itertools.count(1, step):
        interrupt = Interrupt(number, **options)
        yield interrupt
        if interrupt.left > 0:
            assert number > more_than
            return
