"""What this package registers."""

from penstock.contracts import Allocator, SegmentWriter
from penstock.hookspecs import hookimpl
from penstock_alloc.mmap_writer import MmapWriter
from penstock_alloc.on_demand import OnDemandAllocator


@hookimpl
def penstock_register_writer() -> list[type[SegmentWriter]]:
    """Offer the built-in segment writers."""
    return [MmapWriter]


@hookimpl
def penstock_register_allocator() -> list[type[Allocator]]:
    """Offer the built-in allocators."""
    return [OnDemandAllocator]
