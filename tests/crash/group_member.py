"""A member of a group, in a process of its own, that says what it does: `python -m tests.crash.group_member STORE TRACE SECONDS`.

Each line of the trace is one write: time in nanoseconds, process, what, queue, epoch, offset.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.crash.group_story import GROUP, SETTINGS, TOPIC, services

from penstock.files import Files
from penstock.runtime.clock import Clock
from penstock.testing.kit import open_store
from penstock_messaging.groups.claims import Claims
from penstock_messaging.groups.owned_queue import OwnedQueue


class Orders:
    """Subscribes to the one topic."""

    text, names = TOPIC, (TOPIC,)

    def matches(self, topic: str) -> bool:
        """Return whether it is that topic."""
        return topic == TOPIC

    @classmethod
    def parse(cls, _text: str) -> "Orders":
        """Return the same selection: all members have it."""
        return cls()


def main(path: str, trace: str, seconds: float) -> None:
    """Consume until the time is over, then hand everything back."""
    out = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(what: str, queue: OwnedQueue, offset: int = 0) -> None:
        line = f"{time.monotonic_ns()} {os.getpid()} {what} {queue.queue} {queue.epoch} {offset}\n"
        os.write(out, line.encode())

    def back(queue: OwnedQueue) -> None:
        say("back", queue)
        queue.hand_back()
        reached.pop(queue, None)

    reached: dict[OwnedQueue, int] = {}
    store = open_store(Path(path), read_only=True, **SETTINGS)
    groups, _ = services(store, Files(), Clock())  # type: ignore[arg-type] # the machine's clock
    claims = Claims(groups, GROUP, Orders(), on_taken=lambda q: say("take", q), on_wanted_back=back)
    claims.start()
    end_s, next_s = time.monotonic() + seconds, 0.0
    while time.monotonic() < end_s:
        if time.monotonic() > next_s:
            claims.step()
            next_s = time.monotonic() + 0.05
        for queue in list(claims.owned.values()):
            _consume(groups.store.max_offset(TOPIC, queue.queue), queue, reached, say)
        time.sleep(0.001)
    for queue in list(claims.owned.values()):
        back(queue)
    claims.stop()
    store.close()


def _consume(
    end: int,
    queue: OwnedQueue,
    reached: dict[OwnedQueue, int],
    say: Callable[[str, OwnedQueue, int], None],
) -> None:
    """Acknowledge the next few messages, each pair with one in reverse order."""
    base = reached.get(queue, queue.position.base)
    todo = [o for o in range(base, min(end, base + 4)) if not queue.position.is_done(o)]
    for offset in [*todo[1::2], *todo[::2]]:
        queue.sync(queue.ack([offset], base))
        say("ack", queue, offset)
    reached[queue] = min(end, base + 4)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
