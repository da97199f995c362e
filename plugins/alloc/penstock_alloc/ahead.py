"""Creates files in the background before they are needed.

Orders are processed in file name order, which is offset order: the file needed first comes first. If a file is
needed and its creation has not begun, the caller creates it. If its creation is in progress, the caller waits, up
to a limit. A failed order is dropped: the caller that needs the file tries again, and gets the current error.
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
    """One ordered file: `size` bytes, with all its blocks allocated if `allocated`."""

    size: int
    allocated: bool
    is_begun: bool = False
    file: File | None = None


class Ahead:
    """Ordered files, and files already created. Safe from any thread."""

    def __init__(self, make: Make, timeout_ms: int) -> None:
        self._make = make
        self._timeout_ms = timeout_ms
        self._orders: dict[Path, Order] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def ready(self) -> int:
        """The number of files that are created and not yet obtained."""
        return sum(order.file is not None for order in list(self._orders.values()))

    def order(self, paths: Sequence[Path], size: int, *, allocated: bool) -> bool:
        """Order files; return whether any order is waiting to be processed."""
        with self._changed:
            for path in paths:
                if path not in self._orders and not self._is_closed:
                    self._orders[path] = Order(size, allocated)
            return any(not order.is_begun for order in self._orders.values())

    def work(self) -> None:
        """Create the ordered files one by one until no order is left."""
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
        """Return the file at `path`: already created, waited for, or created now.

        Raises `BusyError` if its creation in the background takes longer than the limit.
        """
        with self._changed:
            order = self._orders.get(path)
            if order is not None and order.is_begun:
                done = self._changed.wait_for(
                    lambda: order.file is not None or path not in self._orders,
                    self._timeout_ms / 1000,
                )
                if not done:
                    raise BusyError(
                        f"the next segment {path.name} has not been ready", self._timeout_ms
                    )
            self._orders.pop(path, None)
        if order is not None and order.file is not None:
            return order.file
        return self._make(path, size, allocated)

    def close(self) -> list[File]:
        """Accept no more orders; return the files that were not obtained, the last one first.

        Removing them in this order leaves no gap between segments, even if the process dies in between.
        """
        with self._changed:
            self._is_closed = True
            orders = [self._orders[path] for path in sorted(self._orders, reverse=True)]
            left = [order.file for order in orders if order.file is not None]
            self._orders.clear()
        return left
