"""How a command reaches the process that follows: a request file, and a file with its answer.

    penstock/promote-request   JSON: {"token": "4711-1790000000000", "time_ms": 1790000000000}
    penstock/promote-answer    JSON: {"token": ..., "error": null or a text, and the fields of the promotion}

The process that follows looks for a request several times a second, does what it asks, writes the answer, and removes the request. A
request that is older than `VALID_MS` is removed without being followed: a promotion that nobody waits for any more must not happen
when a follower is started days later. Neither file is trusted: one that is not understood is no request.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from penstock.files import Files
from penstock.format.names import SIDE_FOLDER

VALID_MS = 60_000
_SIZE_MAX = 64 << 10


class PromotionRequests:
    """Request and answer of one store. Safe from any process; one asks at a time."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._asked = root / SIDE_FOLDER / "promote-request"
        self._answered = root / SIDE_FOLDER / "promote-answer"

    def ask(self, process_id: int, time_ms: int) -> str:
        """Write a request, in place of an earlier one; return its token, by which its answer is known."""
        token = f"{process_id}-{time_ms}"
        request = json.dumps({"token": token, "time_ms": time_ms}).encode()
        self._files.write_whole(self._asked, request)
        return token

    def pending(self, now_ms: int) -> str | None:
        """Return the token of a request that waits; None if there is none. A stale one, or one not understood, is removed."""
        if not self._files.exists(self._asked):
            return None
        facts = self._read(self._asked)
        token, time_ms = facts.get("token"), facts.get("time_ms")
        if type(token) is str and type(time_ms) is int and abs(now_ms - time_ms) < VALID_MS:
            return token
        self.withdraw()
        return None

    def withdraw(self) -> None:
        """Remove the request, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._asked)

    def answer(self, token: str, **facts: Any) -> None:
        """Write the answer durably, then remove the request."""
        self._files.write_whole(self._answered, json.dumps({"token": token, **facts}).encode())
        self.withdraw()

    def answer_to(self, token: str) -> dict[str, Any] | None:
        """Return the answer to a request, and remove it; None as long as there is none."""
        facts = self._read(self._answered)
        if facts.get("token") != token:
            return None
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._answered)
        return facts

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            facts = json.loads(self._files.read_whole(path, _SIZE_MAX))
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}
