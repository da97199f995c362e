"""Registers the segment writers and allocators of this package."""

from penstock import hookimpl
from penstock.contracts import Allocator, SegmentWriter
from penstock_alloc.file_writer import FileWriter
from penstock_alloc.mmap_writer import MmapWriter
from penstock_alloc.on_demand import OnDemandAllocator
from penstock_alloc.preallocate import PreallocateAllocator
from penstock_alloc.recycle import RecycleAllocator
from penstock_alloc.transient_pool import TransientPoolWriter


@hookimpl
def penstock_register_writer() -> list[type[SegmentWriter]]:
    """Return the built-in segment writers."""
    return [MmapWriter, TransientPoolWriter, FileWriter]


@hookimpl
def penstock_register_allocator() -> list[type[Allocator]]:
    """Return the built-in allocators."""
    return [OnDemandAllocator, PreallocateAllocator, RecycleAllocator]
