"""A master's log as bytes in memory."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock._kernel import Bell
from penstock.contracts import Epoch, LogBell, Replica
from penstock_replicate.wire import data_parts

HISTORY = "0" * 32
SEGMENT = 4096


def store_id(number: int) -> str:
    return f"{number:016x}"


def data_frame(log_offset: int, data: bytes | memoryview) -> bytes:
    return b"".join(data_parts(log_offset, data))


class FakeLog:
    """What a replicator sees of a store; `reached` and `available` are what it was told last."""

    root = Path("master")
    segment_bytes = SEGMENT
    puts_wait = True
    # Nobody rings it: tests call what it would have called.
    bell: LogBell = Bell()
    removed_topics: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self, data: bytes = b"", *, epochs: tuple[Epoch, ...] = (), min_offset: int = 0
    ) -> None:
        self.data = bytearray(data)
        self.min_offset = min_offset
        self.visible_offset = len(data)
        self.missed_offset = 0
        first = Epoch(1, 0, 0, store_id(1))
        self.replica = Replica(
            history=HISTORY, store=store_id(1), role="master", epochs=epochs or (first,)
        )
        self.ends = list[list[Any]]()
        self.recent_from = 0
        self.reached = 0
        self.available = False

    def put(self, data: bytes) -> None:
        self.data += data
        self.visible_offset = len(self.data)

    def read(self, log_offset: int, size: int) -> bytes:
        stop = log_offset - log_offset % self.segment_bytes + self.segment_bytes
        return bytes(self.data[log_offset : min(log_offset + size, stop, self.visible_offset)])

    def recent(self, log_offset: int, size: int) -> bytes:
        return self.read(log_offset, size) if log_offset >= self.recent_from else b""

    def digest(self, start: int, stop: int) -> bytes:
        raise NotImplementedError

    def ranges(self) -> MappingProxyType[str, Any]:
        return MappingProxyType({"ranges": []})

    def lone_ends(self) -> list[list[Any]]:
        return self.ends

    def reach(self, log_offset: int, *, available: bool, missed: int) -> None:
        assert log_offset >= self.reached
        self.reached = log_offset
        self.available = available and missed >= self.missed_offset

    def publish(self, status: Any) -> None:
        pass
