"""Files made in the background before they are asked for.

Orders are worked off nearest file first (file names sort by offset). Whoever needs a file that nobody
has begun makes it on the spot; whoever needs one that is being made waits, up to a limit. An order
that failed is forgotten: the one who needs the file tries again, and gets the error of today.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from penstock.errors import BusyError
from penstock.files import File

Make = Callable[[Path, int, bool], File]


@attrs.define
class Order:
    """One file wanted: `size` bytes, with all its blocks if `allocated`."""

    size: int
    allocated: bool
    is_begun: bool = False
    file: File | None = None


class Ahead:
    """Orders for files, and those already made. Safe from any thread."""

    def __init__(self, make: Make, timeout_ms: int) -> None:
        self._make = make
        self._timeout_ms = timeout_ms
        self._orders: dict[Path, Order] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def ready(self) -> int:
        """How many files are made and not asked for yet."""
        return sum(order.file is not None for order in list(self._orders.values()))

    def order(self, paths: Sequence[Path], size: int, *, allocated: bool) -> bool:
        """Want files; returns whether there is something to do."""
        with self._changed:
            for path in paths:
                if path not in self._orders and not self._is_closed:
                    self._orders[path] = Order(size, allocated)
            return any(not order.is_begun for order in self._orders.values())

    def work(self) -> None:
        """Make what is wanted, one by one, until nothing is left to do."""
        while True:
            with self._changed:
                waiting = [path for path, order in self._orders.items() if not order.is_begun]
                if not waiting or self._is_closed:
                    return
                path = min(waiting)
                order = self._orders[path]
                order.is_begun = True
            try:
                order.file = self._make(path, order.size, order.allocated)
            except OSError:
                with self._changed:
                    self._orders.pop(path, None)
                    self._changed.notify_all()
                return
            with self._changed:
                self._changed.notify_all()

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """Return the file at `path`: made already, waited for, or made now."""
        with self._changed:
            order = self._orders.get(path)
            if order is not None and order.is_begun:
                done = self._changed.wait_for(
                    lambda: order.file is not None or path not in self._orders,
                    self._timeout_ms / 1000,
                )
                if not done:
                    raise BusyError(
                        f"the next segment {path.name} has been in the making", self._timeout_ms
                    )
            self._orders.pop(path, None)
        if order is not None and order.file is not None:
            return order.file
        return self._make(path, size, allocated)

    def close(self) -> list[File]:
        """Take no more orders; returns the files that nobody asked for, the last one first.

        Removed in this order they never leave a gap, should the process die meanwhile.
        """
        with self._changed:
            self._is_closed = True
            orders = [self._orders[path] for path in sorted(self._orders, reverse=True)]
            left = [order.file for order in orders if order.file is not None]
            self._orders.clear()
        return left
