"""The test suite for the contract of a dispatcher."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.contracts import Context, Dispatcher, QueueIndex, Trust
from penstock.format.names import SIDE_FOLDER
from penstock.testing.control import ManualClock, ManualWorkers
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import WrittenLog, make_context, open_store
from penstock.testing.suites.base import ContractSuite

MakeDispatcher = Callable[[], Dispatcher]


class DispatcherContract(ContractSuite):
    """Subclass this and return your dispatcher's class from `strategy`.

    Two dispatchers have the same content if their `snapshot` is equal; a subclass that overrides it, for example to
    return the rows of its tables, makes the tests stricter.
    """

    contract: ClassVar[Any] = Dispatcher

    @pytest.fixture
    def log(self, tmp_path: Path) -> WrittenLog:
        """Return a log of 1500 records in multiple segments."""
        return WrittenLog(tmp_path / "log")

    @pytest.fixture
    def context(
        self,
        tmp_path: Path,
        files: FaultyFiles,
        workers: ManualWorkers,
        clock: ManualClock,
        log: WrittenLog,
    ) -> Context:
        """Return a context with its own folder, separate from the log's."""
        return make_context(tmp_path / "store", files=files, spawn=workers, clock=clock)

    @pytest.fixture
    def make(
        self, strategy: type[Dispatcher], options: dict[str, Any], context: Context
    ) -> Iterator[MakeDispatcher]:
        """Return a function that creates a dispatcher, as each opening of a store does."""
        made: list[Dispatcher] = []

        def make_it() -> Dispatcher:
            for dispatcher in made:
                dispatcher.close()
            made.append(strategy(strategy.Options(**options), context))
            return made[-1]

        yield make_it
        for dispatcher in made:
            dispatcher.close()

    def snapshot(self, dispatcher: Dispatcher, log: WrittenLog) -> object:
        """Return the dispatcher's content, to be compared."""
        return dispatcher.stats()

    @staticmethod
    def trust(log: WrittenLog, *, durable: int = 0, is_clean: bool = False) -> Trust:
        """Return the `Trust` that the kernel passes when a store is opened."""
        return Trust(
            log=log.view, durable_offset=durable, is_clean=is_clean, was_abnormal=not is_clean
        )

    def filled(self, make: MakeDispatcher, log: WrittenLog) -> Dispatcher:
        """Return a dispatcher that has processed the whole log."""
        dispatcher = make()
        dispatcher.load(self.trust(log, is_clean=True))
        return self.catch_up(dispatcher, log)

    @staticmethod
    def catch_up(dispatcher: Dispatcher, log: WrittenLog) -> Dispatcher:
        """Dispatch all records from its progress on, as the kernel does."""
        for batch in log.batches(max(dispatcher.progress, log.view.min_offset)):
            dispatcher.dispatch(batch)
        return dispatcher

    def check(self, dispatcher: Dispatcher, log: WrittenLog, expected: object) -> None:
        """Compare with the content of a dispatcher that had no errors."""
        assert dispatcher.progress == log.end_offset
        assert self.snapshot(dispatcher, log) == expected

    def test_progress_follows_what_it_is_given(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """The progress is the end of the last batch, from 0 to the log's end."""
        dispatcher = make()
        dispatcher.load(self.trust(log, is_clean=True))
        assert dispatcher.progress == 0
        for batch in log.batches():
            dispatcher.dispatch(batch)
            assert dispatcher.progress == batch.end_offset
        assert dispatcher.progress == log.end_offset

    def test_a_batch_twice_changes_nothing(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """After a restart the kernel dispatches again from any offset at or below the progress."""
        expected = self.snapshot(self.filled(make, log), log)
        dispatcher = make()
        dispatcher.load(self.trust(log))
        self.catch_up(dispatcher, log)
        for start in (0, log.offsets()[700], log.offsets()[-1]):
            for batch in log.batches(start):
                dispatcher.dispatch(batch)
        self.check(dispatcher, log, expected)

    def test_flush_claims_no_more_than_its_progress(
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """The next open trusts the offset that `flush` returns."""
        dispatcher = make()
        dispatcher.load(self.trust(log, is_clean=True))
        for batch in log.batches():
            dispatcher.dispatch(batch)
            assert 0 <= dispatcher.flush() <= dispatcher.progress
        assert dispatcher.flush() == log.end_offset

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_it_is_all_there_after_reopening(
        self, make: MakeDispatcher, log: WrittenLog, is_clean: bool
    ) -> None:
        """After a clean close nothing is dispatched again; after a crash, dispatching continues at the progress."""
        first = self.filled(make, log)
        expected = self.snapshot(first, log)
        durable = first.flush()
        heir = make()
        heir.load(self.trust(log, durable=durable, is_clean=is_clean))
        if is_clean:
            assert heir.progress == log.end_offset
        self.check(self.catch_up(heir, log), log, expected)

    def test_what_was_not_flushed_is_made_again(
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """The content is complete again if the process died after the last flush."""
        expected = self.snapshot(self.filled(make, log), log)
        half = log.offsets()[800]
        dispatcher = make()
        dispatcher.load(self.trust(log))
        for batch in log.batches(0, half):
            dispatcher.dispatch(batch)
        durable = dispatcher.flush()
        for batch in log.batches(half):
            dispatcher.dispatch(batch)
        heir = make()
        heir.load(self.trust(log, durable=durable))
        self.check(self.catch_up(heir, log), log, expected)

    @pytest.mark.parametrize("row", [0, 1, 640, 1499])
    def test_truncate_forgets_what_lies_behind(
        self, make: MakeDispatcher, log: WrittenLog, row: int
    ) -> None:
        """Records after the cut are forgotten, and the records that replace them are processed."""
        dispatcher = self.filled(make, log)
        expected = self.snapshot(dispatcher, log)
        cut = log.offsets()[row]
        dispatcher.truncate(cut)
        assert dispatcher.progress <= cut
        self.check(self.catch_up(dispatcher, log), log, expected)

    @pytest.mark.parametrize("row", [0, 1, 640, 1199])
    @pytest.mark.parametrize("is_reopened", [True, False])
    def test_what_was_cut_is_gone_when_other_records_come_there(
        self, make: MakeDispatcher, tmp_path: Path, log: WrittenLog, row: int, is_reopened: bool
    ) -> None:
        """If a crash or a repair has cut the log, the kernel calls `truncate` after `load`; then other records follow."""
        other = WrittenLog(tmp_path / "other", 1200, alike=row)
        dispatcher = self.filled(make, other)
        expected = self.snapshot(dispatcher, other)
        shutil.rmtree(dispatcher.context.root)
        make_context(dispatcher.context.root)
        dispatcher = self.filled(make, log)
        durable, cut = dispatcher.flush(), log.offsets()[row]
        if is_reopened:
            dispatcher = make()
            dispatcher.load(Trust(
                log=log.ending_at(cut), durable_offset=durable, is_clean=False, was_abnormal=True
            ))  # fmt: skip
        for _ in range(2):
            dispatcher.truncate(cut)
            assert dispatcher.progress <= cut
            assert dispatcher.flush() <= cut
        self.check(self.catch_up(dispatcher, other), other, expected)
        assert dispatcher.flush() == other.end_offset
        self.check_nothing_wrong(dispatcher, other)

    def test_truncate_at_the_end_changes_nothing(
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """If the torn tail held no record, there is nothing to forget."""
        dispatcher = self.filled(make, log)
        expected = self.snapshot(dispatcher, log)
        dispatcher.truncate(log.end_offset)
        self.check(dispatcher, log, expected)
        assert dispatcher.flush() == log.end_offset
        self.check_nothing_wrong(dispatcher, log)

    @staticmethod
    def check_nothing_wrong(dispatcher: Dispatcher, log: WrittenLog) -> None:
        """Compare with the log, if the dispatcher has a checker."""
        checker = dispatcher.checker()
        if checker is not None:
            found = [*checker.start()]
            found += [finding for batch in log.batches() for finding in checker.batch(batch)]
            assert not [*found, *checker.finish(log.end_offset)]

    def test_it_points_to_nothing_behind_the_logs_end(
        self, make: MakeDispatcher, tmp_path: Path, log: WrittenLog
    ) -> None:
        """The dispatcher handles a log that lost its tail in a crash, while the derived files did not."""
        self.filled(make, log).flush()
        short = WrittenLog(tmp_path / "short", 600)
        dispatcher = make()
        dispatcher.load(self.trust(short, durable=log.end_offset))
        assert dispatcher.progress <= short.end_offset
        self.catch_up(dispatcher, short)
        assert dispatcher.progress == short.end_offset

    def test_trim_is_heard(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """After retention has deleted the log's head, the rest stays; trimming twice changes nothing more."""
        dispatcher = self.filled(make, log)
        dispatcher.trim(log.view.spans()[2][0])
        dispatcher.trim(log.view.spans()[2][0])
        assert dispatcher.progress == log.end_offset
        assert dispatcher.flush() == log.end_offset

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_a_trim_that_was_not_heard_is_made_up_for(
        self, make: MakeDispatcher, log: WrittenLog, is_clean: bool
    ) -> None:
        """If the process died between the deletion of a segment and `trim`, `load` trims to the log's minimum offset."""
        durable = self.filled(make, log).flush()
        log.lose_head(2)
        heir = make()
        heir.load(self.trust(log, durable=durable, is_clean=is_clean))
        self.catch_up(heir, log)
        assert heir.progress == log.end_offset
        checker = heir.checker()
        if checker is not None:
            found = [finding for batch in log.batches() for finding in checker.batch(batch)]
            assert not [*found, *checker.finish(log.end_offset)]

    @pytest.mark.parametrize("harm", ["removed", "emptied", "garbage"])
    def test_whatever_happens_to_its_files_is_mended(
        self, make: MakeDispatcher, log: WrittenLog, context: Context, harm: str
    ) -> None:
        """Lost or corrupt files are rebuilt from the log, and nothing is raised."""
        before = set(_files(context.root))
        expected = self.snapshot(self.filled(make, log), log)
        make().close()
        own = sorted(set(_files(context.root)) - before)
        for path in own[:: max(len(own) // 5, 1)]:
            _harm(path, harm)
            heir = make()
            heir.load(self.trust(log, durable=0))
            self.check(self.catch_up(heir, log), log, expected)
            heir.flush()

    def test_an_error_leaves_progress_where_it_was(
        self, make: MakeDispatcher, log: WrittenLog, files: FaultyFiles
    ) -> None:
        """After an error the kernel retries from the unchanged progress, once the disk works again."""
        expected = self.snapshot(self.filled(make, log), log)
        shutil.rmtree(make().context.root)
        make_context(make().context.root)
        dispatcher = make()
        dispatcher.load(self.trust(log))
        batches = log.batches()
        dispatcher.dispatch(batches[0])
        for call in ("pwrite", "create", "open", "allocate", "rename"):
            files.plan.fail(call, after=1)
            before = dispatcher.progress
            try:
                for batch in log.batches(before):
                    before = dispatcher.progress
                    dispatcher.dispatch(batch)
            except OSError:
                assert dispatcher.progress == before
            files.plan.heal()
        self.check(self.catch_up(dispatcher, log), log, expected)

    def test_a_failed_sync_is_told(
        self,
        make: MakeDispatcher,
        log: WrittenLog,
        files: FaultyFiles,
        strategy: type[Dispatcher],
    ) -> None:
        """`flush` raises if a sync fails, unless it uses its own files, where the test cannot inject a failure."""
        dispatcher = self.filled(make, log)
        files.plan.fail("sync")
        if "own-files" in strategy.capabilities:
            assert dispatcher.flush() == log.end_offset
        else:
            with pytest.raises(OSError, match="Input/output"):
                dispatcher.flush()

    def test_its_checker_finds_nothing_where_nothing_is_wrong(
        self, make: MakeDispatcher, log: WrittenLog, strategy: type[Dispatcher]
    ) -> None:
        """The checker finds nothing in correct files; it exists if the capability "checks" is listed."""
        checker = self.filled(make, log).checker()
        assert (checker is not None) == ("checks" in strategy.capabilities)
        if checker is not None:
            found = [finding for batch in log.batches() for finding in checker.batch(batch)]
            assert not [*found, *checker.finish(log.end_offset)]

    def test_a_store_with_it_works(
        self, strategy: type[Dispatcher], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """A store with the built-in dispatchers and this one works with real threads: put, close, reopen, verify."""
        use = [strategy.name]
        if not issubclass(strategy, QueueIndex):
            use = ["consume-queue", strategy.name]
        given = {f"index.{strategy.name}.{key}": value for key, value in options.items()}
        chosen: dict[str, Any] = {"strategies": [strategy], "index": use, **given}
        with open_store(tmp_path / "s", **chosen) as store:
            for number in range(300):
                store.put("t", b"%d" % number, queue=0, keys=[f"k{number}"])
            assert store.max_offset("t", 0) == 300
        for _ in range(2):
            with open_store(tmp_path / "s", **chosen) as store:
                assert store.recovery is not None
                assert store.recovery.state == "clean"
                assert store.recovery.mended == ()
                assert store.stats()["dispatchers"][strategy.name]["error"] is None
                assert not list(store.verify())


def _files(root: Path) -> list[Path]:
    found = [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
    return [path for path in found if path.parent.name != SIDE_FOLDER]


def _harm(path: Path, how: str) -> None:
    size = path.stat().st_size
    if how == "removed":
        path.unlink()
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.write_bytes(b"\xa5garbage" * (size // 8) + b"\xff" * (size % 8))
