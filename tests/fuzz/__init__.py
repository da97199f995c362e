"""Fuzz targets, one module a reader; each has `target(data)`, which returns or raises what is a bug."""

import importlib
from collections.abc import Callable

TARGETS = ("records", "segments", "queues", "indexes", "marks", "tables", "configs")


def load(name: str) -> Callable[[bytes], None]:
    """Return a target by its name."""
    target: Callable[[bytes], None] = importlib.import_module(f"tests.fuzz.{name}").target
    return target
