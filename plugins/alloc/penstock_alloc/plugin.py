"""Registers the segment writers and allocators of this package. Imports them only when a store is opened."""

from typing import TYPE_CHECKING

from penstock import hookimpl

if TYPE_CHECKING:
    from penstock.contracts import Allocator, SegmentWriter


@hookimpl
def penstock_register_writer() -> "list[type[SegmentWriter]]":
    """Return the built-in segment writers."""
    from penstock_alloc.file_writer import FileWriter  # noqa: PLC0415 - see the module
    from penstock_alloc.mmap_writer import MmapWriter  # noqa: PLC0415 - as above
    from penstock_alloc.transient_pool import TransientPoolWriter  # noqa: PLC0415 - as above

    return [MmapWriter, TransientPoolWriter, FileWriter]


@hookimpl
def penstock_register_allocator() -> "list[type[Allocator]]":
    """Return the built-in allocators."""
    from penstock_alloc.on_demand import OnDemandAllocator  # noqa: PLC0415 - see the module
    from penstock_alloc.preallocate import PreallocateAllocator  # noqa: PLC0415 - as above
    from penstock_alloc.recycle import RecycleAllocator  # noqa: PLC0415 - as above

    return [OnDemandAllocator, PreallocateAllocator, RecycleAllocator]
