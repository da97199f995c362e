"""Registers the segment writers and allocators of this package. Imports them only when a store is opened."""

from penstock import hookimpl


@hookimpl
def penstock_register_writer() -> list[type]:
    """Return the built-in segment writers."""
    from penstock_alloc import writers  # noqa: PLC0415 - see the module

    return [writers.MmapWriter, writers.TransientPoolWriter, writers.FileWriter]


@hookimpl
def penstock_register_allocator() -> list[type]:
    """Return the built-in allocators."""
    from penstock_alloc import allocators as made  # noqa: PLC0415 - see the module

    return [made.OnDemandAllocator, made.PreallocateAllocator, made.RecycleAllocator]
