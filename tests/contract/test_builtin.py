"""Every built-in strategy passes its contract's suite, as a third party's would."""

from typing import Any

import pytest

from penstock.contracts import Strategy
from penstock.testing import (
    AllocatorContract,
    ExtensionContract,
    FlushPolicyContract,
    KeyIndexContract,
    QueueIndexContract,
    RetentionPolicyContract,
    SegmentWriterContract,
)
from penstock_alloc.allocators import OnDemandAllocator, PreallocateAllocator, RecycleAllocator
from penstock_alloc.writers import FileWriter, MmapWriter, TransientPoolWriter
from penstock_flush.policies import AsyncFlush, NoFlush, SyncFlush
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher
from penstock_messaging.extension import MessagingExtension
from penstock_retention.policies import AgeRetention, DiskRatioRetention, SizeRetention


class TestMmap(SegmentWriterContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return MmapWriter


class TestFile(SegmentWriterContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return FileWriter


class TestTransientPool(SegmentWriterContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return TransientPoolWriter

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"lock_memory": False}


class TestTransientPoolWithoutABuffer(TestTransientPool):
    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"lock_memory": False, "buffers": 1}


class TestOnDemand(AllocatorContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return OnDemandAllocator


class TestPreallocate(AllocatorContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return PreallocateAllocator


class TestPreallocateCold(TestPreallocate):
    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"prefault": False}


class TestRecycle(AllocatorContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return RecycleAllocator


class TestSync(FlushPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return SyncFlush


class TestAsync(FlushPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return AsyncFlush


class TestNone(FlushPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return NoFlush


class TestConsumeQueue(QueueIndexContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return ConsumeQueueDispatcher


class TestHashIndex(KeyIndexContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return HashIndexDispatcher


class TestAge(RetentionPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return AgeRetention

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"reserved_hours": 24.0, "delete_when": "*"}


class TestSize(RetentionPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return SizeRetention

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"bytes_max": 200_000}


class TestDiskRatio(RetentionPolicyContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return DiskRatioRetention


class TestMessaging(ExtensionContract):
    @pytest.fixture
    def strategy(self) -> type[Strategy]:
        return MessagingExtension
