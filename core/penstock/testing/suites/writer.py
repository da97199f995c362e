"""The test suite for the contract of a segment writer."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Context, SegmentChannel, SegmentWriter
from penstock.files import File
from penstock.testing.control import ManualClock, ManualWorkers
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import SMALL, make_context, open_store
from penstock.testing.suites.base import ContractSuite

CAPACITY = SMALL.segment_bytes
OpenChannel = Callable[..., SegmentChannel]


class SegmentWriterContract(ContractSuite):
    """Subclass this and return your writer's class from `strategy`."""

    contract = SegmentWriter

    @pytest.fixture(params=[False, True], ids=["puts return", "puts wait"])
    def context(
        self,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        files: FaultyFiles,
        workers: ManualWorkers,
        clock: ManualClock,
    ) -> Context:
        """Return the kernel's context, once with a flush policy that waits for the disk, and once without."""
        return make_context(
            tmp_path / "store",
            files=files,
            spawn=workers,
            clock=clock,
            appenders_wait=request.param,
        )

    @pytest.fixture
    def writer(
        self, strategy: type[SegmentWriter], options: dict[str, Any], context: Context
    ) -> Iterator[SegmentWriter]:
        """Return a writer that has not been started."""
        writer = strategy(strategy.Options(**options), context)
        yield writer
        writer.close()

    @pytest.fixture
    def open_channel(self, writer: SegmentWriter, context: Context) -> Iterator[OpenChannel]:
        """Return a function that opens a channel on a new file, or on one that holds `data`."""
        opened: list[SegmentChannel] = []

        def open_it(data: bytes = b"") -> SegmentChannel:
            path = context.root / "commitlog" / f"{len(opened) * CAPACITY:020d}"
            file: File = context.files.create(path)
            file.allocate(CAPACITY)
            if data:
                file.pwrite(data, 0)
            opened.append(writer.open(file, CAPACITY, len(data)))
            return opened[-1]

        yield open_it
        for channel in opened:
            channel.close()

    @staticmethod
    def on_disk(context: Context, number: int = 0) -> bytes:
        """Return a segment's bytes as other processes see them."""
        return (context.root / "commitlog" / f"{number * CAPACITY:020d}").read_bytes()

    def test_it_says_whether_it_holds_bytes_back(
        self, writer: SegmentWriter, context: Context
    ) -> None:
        """`commits_at_once` and the capability "holds-back" are opposites, unless puts wait."""
        if not context.appenders_wait:
            assert writer.commits_at_once != ("holds-back" in writer.capabilities)

    def test_committed_bytes_are_in_the_view_and_in_the_file(
        self, open_channel: OpenChannel, context: Context
    ) -> None:
        """Committed bytes are visible to readers of this process and of others."""
        channel = open_channel()
        assert len(channel.view) == CAPACITY
        channel.write(0, b"first")
        channel.write(5, memoryview(b"second"))
        channel.commit()
        assert bytes(channel.view[:12]) == b"firstsecond\0"
        assert self.on_disk(context)[:12] == b"firstsecond\0"

    def test_what_is_committed_at_once_needs_no_commit(
        self, open_channel: OpenChannel, writer: SegmentWriter, context: Context
    ) -> None:
        """Under `commits_at_once` the bytes survive the process when `write` returns."""
        channel = open_channel()
        channel.write(0, b"at once")
        if writer.commits_at_once:
            assert bytes(channel.view[:7]) == b"at once"
            assert self.on_disk(context)[:7] == b"at once"
        else:
            channel.commit()
            assert bytes(channel.view[:7]) == b"at once"

    def test_what_it_lends_is_the_file_itself(
        self, strategy: type[SegmentWriter], options: dict[str, Any], context: Context
    ) -> None:
        """The kernel syncs by the descriptor, and writes records into memory or the gathering buffer without `write`."""
        plain = make_context(context.root, appenders_wait=context.appenders_wait)
        writer = strategy(strategy.Options(**options), plain)
        file = plain.files.create(context.root / "commitlog" / f"{0:020d}")
        file.allocate(CAPACITY)
        channel = writer.open(file, CAPACITY, 0)
        try:
            channel.reserve(CAPACITY)
            if channel.descriptor is not None:
                assert os.fstat(channel.descriptor).st_ino == file.inode
                assert writer.commits_at_once or channel.gathered is not None
            if channel.gathered is not None:
                assert channel.memory_end > 0
                assert channel.gathered.put(0, b"gathered")
                channel.commit()
                assert bytes(channel.view[:8]) == self.on_disk(context)[:8] == b"gathered"
        finally:
            channel.close()
            writer.close()

    def test_it_goes_on_behind_what_the_file_holds(
        self, open_channel: OpenChannel, context: Context
    ) -> None:
        """The bytes before the position do not change; the kernel relies on this when it opens a store."""
        channel = open_channel(b"before")
        assert bytes(channel.view[:6]) == b"before"
        channel.write(6, b" and after")
        channel.commit()
        channel.flush()
        assert self.on_disk(context)[:17] == b"before and after\0"

    @pytest.mark.parametrize("seed", range(3))
    def test_any_sizes_up_to_the_last_byte(
        self, open_channel: OpenChannel, context: Context, seed: int
    ) -> None:
        """Small and large writes with commits in between fill a segment completely."""
        rng = random.Random(seed)
        print("seed", seed)
        channel = open_channel()
        expected = bytearray()
        while len(expected) < CAPACITY:
            size = min(rng.choice((1, 90, 4096, 20_000)), CAPACITY - len(expected))
            data = rng.randbytes(size)
            channel.write(len(expected), data)
            expected += data
            if rng.random() < 0.3:
                channel.commit()
                assert bytes(channel.view[: len(expected)]) == expected
        channel.commit()
        channel.flush()
        assert self.on_disk(context) == expected
        assert bytes(channel.view) == expected

    def test_a_failed_sync_is_told(self, open_channel: OpenChannel, files: FaultyFiles) -> None:
        """`flush` raises if a sync fails; otherwise the store would acknowledge bytes that are not on disk."""
        channel = open_channel()
        channel.write(0, b"x" * 5000)
        channel.commit()
        files.plan.fail("sync")
        with pytest.raises(OSError, match="Input/output"):
            channel.flush()

    def test_a_refused_write_is_told_and_harms_nothing_before_it(
        self, open_channel: OpenChannel, files: FaultyFiles, context: Context
    ) -> None:
        """If a write fails, `write` or `commit` raises, or the bytes are in the file."""
        channel = open_channel(b"kept")
        channel.commit()
        files.plan.fail("pwrite")
        try:
            channel.write(4, b"refused")
            channel.commit()
        except OSError:
            assert self.on_disk(context)[:4] == b"kept"
        else:
            assert self.on_disk(context)[:11] == b"keptrefused"
        files.plan.heal()
        channel.write(4, b"again")
        channel.commit()
        assert self.on_disk(context)[:9] == b"keptagain"

    def test_commit_runs_beside_write(self, open_channel: OpenChannel, context: Context) -> None:
        """The append path writes while another thread commits and flushes."""
        channel = open_channel()
        stop = threading.Event()
        errors: list[Exception] = []

        def keep_committing() -> None:
            try:
                while not stop.is_set():
                    channel.commit()
                    channel.flush()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=keep_committing)
        thread.start()
        expected = b"".join(number.to_bytes(8, "big") for number in range(CAPACITY // 8))
        for position in range(0, CAPACITY, 512):
            channel.write(position, expected[position : position + 512])
        stop.set()
        thread.join()
        channel.commit()
        assert not errors
        assert self.on_disk(context) == expected

    def test_a_view_outlives_the_channel(self, open_channel: OpenChannel) -> None:
        """A view stays valid after its channel was closed, since a reader may hold it."""
        channel = open_channel()
        channel.write(0, b"still here")
        channel.commit()
        view = channel.view
        channel.close()
        assert bytes(view[:10]) == b"still here"

    def test_closing_gives_descriptors_back(self, writer: SegmentWriter, context: Context) -> None:
        """A channel without views releases its descriptors: a store that rolls for months must not run out of them."""
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(8):
            file = context.files.create(context.root / "commitlog" / str(number))
            file.allocate(CAPACITY)
            channel = writer.open(file, CAPACITY, 0)
            channel.write(0, b"x")
            channel.commit()
            channel.close()
            del channel, file
        assert len(list(Path("/proc/self/fd").iterdir())) <= before

    @pytest.mark.parametrize("flush", ["sync", "async", "none"])
    def test_a_store_on_it_keeps_every_message(
        self, strategy: type[SegmentWriter], options: dict[str, Any], flush: str, tmp_path: Path
    ) -> None:
        """A store keeps all messages through put, roll, read, close and reopen, in combinations without a conflict."""
        if strategy.conflict({"flush": [flush], "alloc": ["on-demand"]}) is not None:
            flush = "async"
        given = {f"write.{strategy.name}.{key}": value for key, value in options.items()}
        chosen: dict[str, Any] = {"write": strategy.name, "flush": flush, **given}
        bodies = [b"%d:" % number + b"y" * (number * 37 % 3000) for number in range(200)]
        with open_store(tmp_path / "s", strategies=[strategy], **chosen) as store:
            for body in bodies:
                store.put("t", body)
            assert [m.body for m in store.scan("t")] == bodies
            assert store.stats()["segments"] > 3
        with open_store(tmp_path / "s", strategies=[strategy], **chosen) as store:
            assert store.recovery is not None
            assert store.recovery.state == "clean"
            assert [m.body for m in store.scan("t")] == bodies
            store.put("t", b"more")
        with open_store(tmp_path / "s", read_only=True) as store:
            assert [m.body for m in store.scan("t")] == [*bodies, b"more"]
            assert not list(store.verify())
