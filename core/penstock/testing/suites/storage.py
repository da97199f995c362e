"""The test suites for the contracts of a segment writer and of an allocator."""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Allocator, Context, GatherBuffer, SegmentChannel, SegmentWriter
from penstock.files import File
from penstock.format.names import SIDE_FOLDER
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import SMALL, ManualClock, ManualWorkers, make_context, open_store
from penstock.testing.suites.policies import ContractSuite

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

    def test_committed_bytes_are_in_the_view_and_in_the_file(
        self, open_channel: OpenChannel, context: Context
    ) -> None:
        """Committed bytes are visible to readers of this process and of others."""
        channel = open_channel()
        assert len(channel.view) == CAPACITY
        channel.write(0, b"first")
        channel.write(5, memoryview(b"second"))
        channel.commit(11)
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
            channel.commit(7)
            assert bytes(channel.view[:7]) == b"at once"

    def test_what_it_lends_is_the_file_itself(
        self, strategy: type[SegmentWriter], options: dict[str, Any], context: Context
    ) -> None:
        """The kernel syncs by the descriptor, and writes records into memory or the buffer without `write`."""
        plain = make_context(context.root, appenders_wait=context.appenders_wait)
        writer = strategy(strategy.Options(**options), plain)
        file = plain.files.create(context.root / "commitlog" / f"{0:020d}")
        file.allocate(CAPACITY)
        channel = writer.open(file, CAPACITY, 0)
        try:
            if channel.blocks is not None:
                channel.blocks.reserve(CAPACITY)
            is_gathered = isinstance(channel.buffer, GatherBuffer)
            if channel.descriptor is not None:
                assert os.fstat(channel.descriptor).st_ino == file.inode
                assert writer.commits_at_once or is_gathered
            if isinstance(channel.buffer, GatherBuffer):
                assert channel.buffer_end > 0
                assert channel.buffer.put(0, b"gathered")
                channel.commit(8)
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
        channel.commit(16)
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
                channel.commit(len(expected))
                assert bytes(channel.view[: len(expected)]) == expected
        channel.commit(CAPACITY)
        channel.flush()
        assert self.on_disk(context) == expected
        assert bytes(channel.view) == expected

    def test_a_failed_sync_is_told(self, open_channel: OpenChannel, files: FaultyFiles) -> None:
        """`flush` raises if a sync fails; otherwise the store would acknowledge bytes that are not on disk."""
        channel = open_channel()
        channel.write(0, b"x" * 5000)
        channel.commit(5000)
        files.plan.fail("sync")
        with pytest.raises(OSError, match="Input/output"):
            channel.flush()

    def test_a_refused_write_is_told_and_harms_nothing_before_it(
        self, open_channel: OpenChannel, files: FaultyFiles, context: Context
    ) -> None:
        """If a write fails, `write` or `commit` raises, or the bytes are in the file."""
        channel = open_channel(b"kept")
        channel.commit(4)
        files.plan.fail("pwrite")
        try:
            channel.write(4, b"refused")
            channel.commit(11)
        except OSError:
            assert self.on_disk(context)[:4] == b"kept"
        else:
            assert self.on_disk(context)[:11] == b"keptrefused"
        files.plan.heal()
        channel.write(4, b"again")
        channel.commit(9)
        assert self.on_disk(context)[:9] == b"keptagain"

    def test_commit_runs_beside_write(self, open_channel: OpenChannel, context: Context) -> None:
        """The append path writes while another thread commits and flushes."""
        channel = open_channel()
        stop = threading.Event()
        errors: list[Exception] = []
        written = 0

        def keep_committing() -> None:
            try:
                while not stop.is_set():
                    channel.commit(written)
                    channel.flush()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=keep_committing)
        thread.start()
        expected = b"".join(number.to_bytes(8, "big") for number in range(CAPACITY // 8))
        for position in range(0, CAPACITY, 512):
            channel.write(position, expected[position : position + 512])
            written = position + 512
        stop.set()
        thread.join()
        channel.commit(CAPACITY)
        assert not errors
        assert self.on_disk(context) == expected

    def test_a_view_outlives_the_channel(self, open_channel: OpenChannel) -> None:
        """A view stays valid after its channel was closed, since a reader may hold it."""
        channel = open_channel()
        channel.write(0, b"still here")
        channel.commit(10)
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
            channel.commit(1)
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


class AllocatorContract(ContractSuite):
    """Subclass this and return your allocator's class from `strategy`."""

    contract = Allocator

    @pytest.fixture
    def allocator(
        self, strategy: type[Allocator], options: dict[str, Any], context: Context
    ) -> Iterator[Allocator]:
        """Return a new allocator."""
        allocator = strategy(strategy.Options(**options), context)
        yield allocator
        allocator.close()

    @staticmethod
    def path(context: Context, number: int) -> Path:
        """Return the path of the n-th segment."""
        return context.root / "commitlog" / f"{number * CAPACITY:020d}"

    def obtain(self, allocator: Allocator, context: Context, number: int) -> File:
        """Obtain the n-th segment as the kernel does, which then expects the next two."""
        file = allocator.obtain(self.path(context, number), CAPACITY, allocated=True)
        following = [self.path(context, number + ahead) for ahead in (1, 2)]
        allocator.expect(following, CAPACITY, allocated=True)
        return file

    @pytest.mark.parametrize("allocated", [True, False])
    def test_a_file_is_there_whole_and_zero(
        self, allocator: Allocator, context: Context, allocated: bool
    ) -> None:
        """The file has the right size and name, every byte is zero, and blocks are allocated if requested."""
        file = allocator.obtain(self.path(context, 0), CAPACITY, allocated=allocated)
        path = self.path(context, 0)
        assert file.path == path
        assert path.read_bytes() == bytes(CAPACITY)
        if allocated:
            assert path.stat().st_blocks * 512 >= CAPACITY
        file.pwrite(b"takes writes", 7)
        file.close()
        assert path.read_bytes()[7:19] == b"takes writes"

    def test_expected_files_are_the_same_made_before_or_not(
        self, allocator: Allocator, context: Context, workers: ManualWorkers
    ) -> None:
        """The result is the same whether background work has run before a file is obtained or not."""
        for number in range(6):
            file = self.obtain(allocator, context, number)
            assert self.path(context, number).read_bytes() == bytes(CAPACITY)
            file.pwrite(b"used" * (CAPACITY // 4), 0)
            file.close()
            if number % 2:
                workers.run_all()
        for number in range(6):
            assert self.path(context, number).read_bytes() == b"used" * (CAPACITY // 4)

    def test_expect_returns_at_once(
        self, allocator: Allocator, context: Context, files: FaultyFiles
    ) -> None:
        """`expect` is called under the append lock, so it creates no file and syncs nothing."""
        before = dict(files.plan.counts)
        allocator.expect([self.path(context, n) for n in (1, 2)], CAPACITY, allocated=True)
        for call in ("create", "allocate", "sync", "sync_folder", "rename", "pwrite"):
            assert files.plan.counts.get(call) == before.get(call), call

    def test_a_file_nobody_expected(self, allocator: Allocator, context: Context) -> None:
        """The kernel may need another file than it announced."""
        allocator.expect([self.path(context, n) for n in (1, 2)], CAPACITY, allocated=True)
        allocator.obtain(self.path(context, 5), CAPACITY, allocated=True).close()
        assert self.path(context, 5).read_bytes() == bytes(CAPACITY)

    @pytest.mark.parametrize("call", ["create", "allocate", "sync", "rename", "sync_folder"])
    def test_a_failure_is_told_leaves_no_trace_and_passes(
        self, allocator: Allocator, context: Context, files: FaultyFiles, call: str
    ) -> None:
        """A file that may not be durable is not returned; once the disk works again, the allocator works again."""
        files.plan.fail(call, errno.ENOSPC)
        try:
            allocator.obtain(self.path(context, 0), CAPACITY, allocated=True).close()
            failed_with = 0
        except OSError as error:
            failed_with = error.errno or -1
        assert failed_with in (0, errno.ENOSPC)
        assert self.path(context, 0).exists() == (failed_with == 0)
        files.plan.heal()
        if failed_with:
            allocator.obtain(self.path(context, 0), CAPACITY, allocated=True).close()
        assert self.path(context, 0).read_bytes() == bytes(CAPACITY)

    @pytest.mark.parametrize("call", ["open", "rename", "sync_folder"])
    def test_a_failure_with_files_at_hand_leaves_no_trace_either(
        self,
        allocator: Allocator,
        context: Context,
        files: FaultyFiles,
        workers: ManualWorkers,
        call: str,
    ) -> None:
        """A failed allocation leaves no trace, even if discarded and preallocated files are available."""
        for number in range(4):
            self.obtain(allocator, context, number).close()
        for number in range(3):
            allocator.discard(self.path(context, number))
            workers.run_all()
        for number in range(4, 9):
            files.plan.fail(call, errno.EIO)
            try:
                self.obtain(allocator, context, number).close()
                has_failed = False
            except OSError:
                has_failed = True
            assert self.path(context, number).exists() != has_failed
            files.plan.heal()
            if has_failed:
                self.obtain(allocator, context, number).close()
            assert self.path(context, number).read_bytes() == bytes(CAPACITY)

    def test_a_failure_in_the_background_is_no_failure_of_the_next_put(
        self,
        allocator: Allocator,
        context: Context,
        files: FaultyFiles,
        workers: ManualWorkers,
    ) -> None:
        """A file that could not be preallocated is created, or refused, when it is needed."""
        self.obtain(allocator, context, 0).close()
        files.plan.fail("create", errno.ENOSPC)
        files.plan.fail("rename", errno.ENOSPC)
        workers.run_all()
        with pytest.raises(OSError, match="No space"):
            allocator.obtain(self.path(context, 1), CAPACITY, allocated=True)
        assert not self.path(context, 1).exists()
        files.plan.heal()
        self.obtain(allocator, context, 1).close()
        assert self.path(context, 1).read_bytes() == bytes(CAPACITY)

    def test_closing_leaves_only_what_was_asked_for(
        self, allocator: Allocator, context: Context, workers: ManualWorkers
    ) -> None:
        """Preallocated and spare files are deleted."""
        for number in range(3):
            self.obtain(allocator, context, number).close()
        workers.run_all()
        allocator.discard(self.path(context, 0))
        workers.run_all()
        allocator.close()
        left = sorted(path.name for path in (context.root / "commitlog").iterdir())
        assert left == [self.path(context, number).name for number in (1, 2)]
        assert not list((context.root / SIDE_FOLDER).iterdir())

    def test_a_discarded_name_is_gone(
        self, allocator: Allocator, context: Context, files: FaultyFiles
    ) -> None:
        """The name is durably deleted when `discard` returns: its folder was synced afterwards."""
        self.obtain(allocator, context, 0).close()
        before = files.plan.counts.get("sync_folder", 0)
        allocator.discard(self.path(context, 0))
        assert not self.path(context, 0).exists()
        assert files.plan.counts["sync_folder"] > before

    def test_old_bytes_never_come_back(
        self, allocator: Allocator, context: Context, workers: ManualWorkers
    ) -> None:
        """A new file is all zero, whatever happens to a discarded one."""
        for number in range(12):
            file = self.obtain(allocator, context, number)
            assert self.path(context, number).read_bytes() == bytes(CAPACITY), number
            file.pwrite(b"old record" * (CAPACITY // 10), 0)
            file.close()
            if number >= 2:
                allocator.discard(self.path(context, number - 2))
            if number % 3 == 0:
                workers.run_all()

    def test_old_bytes_never_come_back_after_a_crash(
        self,
        strategy: type[Allocator],
        options: dict[str, Any],
        allocator: Allocator,
        context: Context,
        workers: ManualWorkers,
    ) -> None:
        """A new file is all zero, even if a killed process left files in the side folder."""
        for number in range(4):
            file = self.obtain(allocator, context, number)
            file.pwrite(b"old record" * (CAPACITY // 10), 0)
            file.close()
        for number in range(3):
            allocator.discard(self.path(context, number))
        # The background work of the first allocator never ran, as if its process had died.
        for path in (context.root / "commitlog").iterdir():
            if path != self.path(context, 3):
                path.unlink()
        heir = strategy(strategy.Options(**options), context)
        heir.expect([self.path(context, n) for n in (4, 5)], CAPACITY, allocated=True)
        workers.run_all()
        for number in range(4, 9):
            self.obtain(heir, context, number).close()
            workers.run_all()
            assert self.path(context, number).read_bytes() == bytes(CAPACITY), number
        heir.close()

    def test_bytes_in_use_never_change(
        self, allocator: Allocator, context: Context, workers: ManualWorkers
    ) -> None:
        """A reader whose lease was ignored can still read its bytes."""
        file = self.obtain(allocator, context, 0)
        file.pwrite(b"still read" * 100, 0)
        view = memoryview(file.map(CAPACITY, writable=False))
        file.close()
        allocator.discard(self.path(context, 0), in_use=True)
        for number in range(1, 5):
            workers.run_all()
            self.obtain(allocator, context, number).close()
        assert bytes(view[:1000]) == b"still read" * 100

    def test_discarded_files_are_used_again_if_it_says_so(
        self,
        allocator: Allocator,
        context: Context,
        strategy: type[Allocator],
        workers: ManualWorkers,
    ) -> None:
        """With the capability "recycles", the same file on disk is used under another name."""
        self.obtain(allocator, context, 0).close()
        self.obtain(allocator, context, 1).close()
        # Kept open, so that its inode number is not assigned to another file.
        old = self.path(context, 0).open("rb")
        number = self.path(context, 0).stat().st_ino
        allocator.discard(self.path(context, 0))
        seen = set()
        for segment in range(2, 8):
            workers.run_all()
            self.obtain(allocator, context, segment).close()
            seen.add(self.path(context, segment).stat().st_ino)
        old.close()
        assert (number in seen) == ("recycles" in strategy.capabilities)

    def test_a_store_on_it_keeps_every_message(
        self, strategy: type[Allocator], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """A store keeps all messages through rolls, retention and reopening, with real threads."""
        given = {f"alloc.{strategy.name}.{key}": value for key, value in options.items()}
        chosen: dict[str, Any] = {"alloc": strategy.name, **given}
        bodies = [b"%d:" % number + b"z" * 3000 for number in range(300)]
        with open_store(tmp_path / "s", strategies=[strategy], **chosen) as store:
            for number, body in enumerate(bodies):
                store.put("t", body)
                if number % 50 == 49:
                    store.flush()
                    store.discard_before(log_offset=store.stats()["log_end_offset"] - 3 * CAPACITY)
            kept = [m.body for m in store.scan("t")]
            assert kept == bodies[-len(kept) :]
        with open_store(tmp_path / "s", strategies=[strategy], **chosen) as store:
            assert [m.body for m in store.scan("t")] == kept
            assert not list(store.verify())
