"""The test suites for the contracts of a dispatcher, a queue index and a key index."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.contracts import Context, Dispatcher, KeyIndex, QueueEnd, QueueIndex, Trust
from penstock.format.names import SIDE_FOLDER
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import WrittenLog, make_context, open_store
from penstock.testing.suites.policies import ContractSuite

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
        """If a crash or repair has cut the log, the kernel calls `truncate` after `load`; then other records follow."""
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
        """If the process died between deleting a segment and `trim`, `load` trims to the log's minimum offset."""
        durable = self.filled(make, log).flush()
        log.lose_head(2)
        heir = make()
        heir.load(self.trust(log, durable=durable, is_clean=is_clean))
        self.catch_up(heir, log)
        assert heir.progress == log.end_offset
        self.check_nothing_wrong(heir, log)

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
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """The checker, if there is one, finds nothing in correct files."""
        self.check_nothing_wrong(self.filled(make, log), log)

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


class QueueIndexContract(DispatcherContract):
    """Subclass this for a queue index."""

    contract = QueueIndex

    def snapshot(self, dispatcher: Dispatcher, log: WrittenLog) -> object:
        """Return every entry of every queue."""
        assert isinstance(dispatcher, QueueIndex)
        found = {}
        for topic, queue in dispatcher.queues():
            low, high = dispatcher.min_offset(topic, queue), dispatcher.max_offset(topic, queue)
            entries = dispatcher.entries(topic, queue, low, high)
            found[topic, queue] = (low, high, *(column.tolist() for column in entries))
        return found

    def test_entries_are_those_of_the_log(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """Each record has one entry, at its queue offset, with its size and tag code."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        for batch in log.batches():
            for row in range(len(batch)):
                topic = batch.topics[batch.topic_rows[row]].decode()
                at = int(batch.queue_offsets[row])
                entries = dispatcher.entries(topic, int(batch.queues[row]), at, at + 1)
                assert [int(column[0]) for column in entries] == [
                    int(batch.log_offsets[row]), int(batch.sizes[row]), int(batch.tag_codes[row]),
                ]  # fmt: skip
        assert dispatcher.end_log_offset() == log.end_offset

    def test_a_removed_topic_stays_removed(
        self, strategy: type[QueueIndex], make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """Records before the removal get no entry again; the other topics keep theirs."""
        if strategy.remove_topic is QueueIndex.remove_topic:
            pytest.skip("it cannot remove topics")
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        before = dict(self.snapshot(dispatcher, log))  # type: ignore[call-overload] # a dictionary, see there
        topic = dispatcher.queues()[0][0]
        dispatcher.remove_topic(topic, log.end_offset)
        kept = {key: entries for key, entries in before.items() if key[0] != topic}
        assert kept
        assert self.snapshot(dispatcher, log) == kept
        for batch in log.batches():
            dispatcher.dispatch(batch)
        assert self.snapshot(dispatcher, log) == kept
        assert dispatcher.max_offset(topic, 0) == 0

    @pytest.mark.parametrize("chunk", [1, 7, 512, 1 << 20])
    def test_entries_come_in_chunks_too(
        self, make: MakeDispatcher, log: WrittenLog, chunk: int
    ) -> None:
        """Each chunk begins where the one before ends, none is empty, and together they equal that of `entries`."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        for topic, queue in dispatcher.queues():
            high = dispatcher.max_offset(topic, queue)
            for start, stop in ((0, high), (3, high - 3), (high - 1, high + 50)):
                at, found = start, []
                for one in dispatcher.iter_entries(topic, queue, start, stop, chunk):
                    assert one.start == at
                    assert 0 < len(one.sizes) == len(one.log_offsets) == len(one.tag_codes) <= chunk
                    at += len(one.sizes)
                    found += list(zip(*(column.tolist() for column in one[1:]), strict=True))
                assert at == min(stop, high)
                expected = dispatcher.entries(topic, queue, start, stop)
                assert found == list(zip(*(c.tolist() for c in expected), strict=True))

    def test_there_are_no_chunks_of_nothing(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """There are no chunks for an empty range, a range past the queue's end, or a queue that does not exist."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        for topic, queue in (*dispatcher.queues(), ("nothing", 3)):
            high = dispatcher.max_offset(topic, queue)
            for start, stop in ((high, high), (high, high + 10), (7, 7), (7, 3)):
                assert list(dispatcher.iter_entries(topic, queue, start, stop)) == []

    @pytest.mark.parametrize("chunk", [7, 512])
    def test_chunks_skip_what_trim_took_away(
        self, make: MakeDispatcher, log: WrittenLog, chunk: int
    ) -> None:
        """A read from before the first remaining file returns all remaining entries."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        dispatcher.trim(log.view.spans()[-1][0])
        for topic, queue in dispatcher.queues():
            low, high = dispatcher.min_offset(topic, queue), dispatcher.max_offset(topic, queue)
            chunks = list(dispatcher.iter_entries(topic, queue, 0, high, chunk))
            assert all(a.start + len(a.sizes) == b.start for a, b in itertools.pairwise(chunks))
            offsets = [at for each in chunks for at in each.log_offsets.tolist()]
            expected = dispatcher.entries(topic, queue, low, high).log_offsets.tolist()
            assert offsets[len(offsets) - len(expected) :] == expected
            assert chunks[0].start <= low

    def test_one_entry_is_told_as_among_others(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """`place` agrees with `entries`, and returns None outside of the queue."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        dispatcher.trim(log.view.spans()[1][0])
        for topic, queue in dispatcher.queues():
            high = dispatcher.max_offset(topic, queue)
            for at in (*range(0, high, 7), high - 1):
                offsets, sizes, _ = dispatcher.entries(topic, queue, at, at + 1)
                there = len(sizes) > 0 and sizes[0] > 0
                expected = (int(offsets[0]), int(sizes[0])) if there else None
                assert dispatcher.place(topic, queue, at) == expected
            assert dispatcher.place(topic, queue, high) is None
        assert dispatcher.place("nothing", 3, 0) is None

    def test_a_queue_that_is_not_there_is_empty(
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """A queue that does not exist is empty, and reading it does not create it."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        before = dispatcher.queues()
        assert dispatcher.max_offset("nothing", 3) == dispatcher.min_offset("nothing", 3) == 0
        assert len(dispatcher.entries("nothing", 3, 0, 10).sizes) == 0
        assert dispatcher.queues() == before == sorted(before)

    def test_trim_moves_the_minimum(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """The minimum is the first entry whose record still exists."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        low = log.view.spans()[2][0]
        dispatcher.trim(low)
        for topic, queue in dispatcher.queues():
            first = dispatcher.min_offset(topic, queue)
            assert dispatcher.entries(topic, queue, first, first + 1).log_offsets[0] >= low
            if first:
                before = dispatcher.entries(topic, queue, first - 1, first)
                assert len(before.sizes) == 0 or before.log_offsets[0] < low

    def test_an_end_that_is_kept_lets_a_queue_go_on(
        self, strategy: type[QueueIndex], make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """The queue has no message then, and one that ends later does not change."""
        if strategy.keep_end is QueueIndex.keep_end:
            pytest.skip("it cannot keep ends")
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        low = log.view.spans()[2][0]
        dispatcher.trim(low)
        before = dict(self.snapshot(dispatcher, log))  # type: ignore[call-overload] # a dictionary, see there
        topic, queue = dispatcher.queues()[0]
        known = QueueEnd(topic, queue, dispatcher.min_offset(topic, queue), 0, 90, 7)
        for end in (known, QueueEnd("idle", 3, 20, 0, 90, 7)):
            dispatcher.keep_end(end)
        assert self.snapshot(dispatcher, log) == {**before, ("idle", 3): (21, 21, [], [], [])}
        assert [*dispatcher.lone_ends()] == [end]

    def test_trim_takes_no_entry_too_many_and_none_too_few(
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """`trim` is exact at any log offset, including file ends, not only where a segment begins."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, QueueIndex)
        cursors = [
            (batch.topics[topic].decode(), queue, offset)
            for batch in log.batches()
            for topic, queue, offset in zip(
                batch.topic_rows.tolist(), batch.queues.tolist(), batch.log_offsets.tolist(), strict=True
            )
        ]  # fmt: skip
        kept: dict[tuple[str, int], list[int]] = {}
        for topic, queue, offset in cursors:
            kept.setdefault((topic, queue), []).append(offset)
        ends = {cursor: len(offsets) for cursor, offsets in kept.items()}
        for row in (0, 1, 2, 7, 600, *range(1190, 1212), 1494, 1498, 1499):
            # Trimming to the start of a record keeps it; trimming to a byte within it removes it.
            for low in (cursors[row][2], cursors[row][2] + 1):
                dispatcher.trim(low)
                for (topic, queue), offsets in kept.items():
                    left = [offset for offset in offsets if offset >= low]
                    first, end = ends[topic, queue] - len(left), ends[topic, queue]
                    assert dispatcher.max_offset(topic, queue) == end
                    assert dispatcher.min_offset(topic, queue) == first
                    found = dispatcher.entries(topic, queue, first, end)
                    assert found.log_offsets.tolist() == left


class KeyIndexContract(DispatcherContract):
    """Subclass this for a key index."""

    contract = KeyIndex

    def snapshot(self, dispatcher: Dispatcher, log: WrittenLog) -> object:
        """Return the candidates of some keys."""
        assert isinstance(dispatcher, KeyIndex)
        forever = 1 << 62
        return {
            (topic, key): sorted(set(dispatcher.candidates(topic, key, 0, forever)))
            for topic in ("topic-0", "topic-1")
            for key in ("key-1", "key-2", "only-77", "only-1499", "only-1", "none")
        }

    def test_no_record_with_the_key_is_left_out(
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """All records with a key are candidates; others may be, too, since the caller checks the records."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, KeyIndex)
        offsets = log.offsets()
        for number, message in enumerate(log.sent):
            for key in message.keys:
                if number % 37 == 0 or key.startswith("key-1"):
                    found = dispatcher.candidates(message.topic, key, 0, 1 << 62)
                    assert offsets[number] in found

    def test_trim_takes_no_key_of_a_record_that_is_left(
        self, make: MakeDispatcher, log: WrittenLog
    ) -> None:
        """The keys of remaining records are kept, whether the log begins at a record or within one."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, KeyIndex)
        offsets = log.offsets()
        for row in (1, 150, *range(262, 272), 800, 1499):
            for low in (offsets[row - 1] + 1, offsets[row]):
                dispatcher.trim(low)
                for number in {row, row + 1, row + 2, *range(row, 1500, 61)} & set(range(1500)):
                    message = log.sent[number]
                    for key in message.keys[1:]:
                        found = dispatcher.candidates(message.topic, key, 0, 1 << 62)
                        assert offsets[number] in found

    def test_the_newest_come_first(self, make: MakeDispatcher, log: WrittenLog) -> None:
        """The newest candidates are returned first, so that a limit keeps them."""
        dispatcher = self.filled(make, log)
        assert isinstance(dispatcher, KeyIndex)
        found = list(dispatcher.candidates("topic-1", "key-1", 0, 1 << 62))
        assert found == sorted(found, reverse=True)
