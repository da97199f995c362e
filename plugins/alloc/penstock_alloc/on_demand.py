"""The `on-demand` allocator: creates a segment when it is needed, and removes expired ones."""

from pathlib import Path
from typing import ClassVar

from penstock.contracts import Allocator
from penstock.files import File
from penstock_alloc.fresh import make_file, remove_file


class OnDemandAllocator(Allocator):
    """Creates each file when an append needs it; that append waits for it."""

    name: ClassVar[str] = "on-demand"

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """See `Allocator`."""
        return make_file(self.context.files, self.context.root, path, size, allocated=allocated)

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        """See `Allocator`."""
        remove_file(self.context.files, path)
