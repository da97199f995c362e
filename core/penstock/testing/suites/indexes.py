"""The test suites for the contracts of a queue index and of a key index."""

import itertools

import pytest

from penstock.contracts import Dispatcher, KeyIndex, QueueIndex
from penstock.testing.kit import WrittenLog
from penstock.testing.suites.dispatcher import DispatcherContract, MakeDispatcher


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
        """Each chunk begins where the one before ends, none is empty, and together they equal the result of `entries`."""
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
