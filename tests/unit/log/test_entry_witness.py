"""Queue entries as evidence: what they say, and that what cannot be read is none."""

from collections.abc import Iterator

import pytest

from penstock.errors import StorageError
from penstock.log.entry_witness import EntryWitness
from penstock.store.store import Store
from penstock.testing import messages, open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("witness") / "s", retention=[]) as made:
        made.put_many(messages(60))
        made.flush()
        yield made


def test_an_entry_tells_where_its_record_is(store: Store) -> None:
    witness = EntryWitness(store._queue_index)
    message = store.read("topic-0", 0, 3).messages[0]
    assert witness.place(b"topic-0", 0, 3) == (message.log_offset, message.size)
    assert witness.end(b"topic-0", 0) == 10
    first = store.read("topic-0", 0, 0).messages[0]
    assert witness.place(b"topic-0", 0, 0) == (first.log_offset, first.size)


def test_what_cannot_be_a_queue_has_no_entry(store: Store) -> None:
    witness = EntryWitness(store._queue_index)
    for topic, queue, offset in ((b"../x", 0, 0), (b"topic-0", -1, 0), (b"topic-0", 0, -1), (b"topic-0", 0, 10), (b"../x", -1, 0)):  # fmt: skip
        assert witness.place(topic, queue, offset) is None
    assert (witness.end(b"\xff", 0), witness.end(b"topic-0", -1), witness.end(b"none", 0)) == (0, 0, 0)  # fmt: skip


@pytest.mark.parametrize("error", [OSError("no"), StorageError("no")])
def test_what_cannot_be_read_is_no_evidence(
    store: Store, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    index = store._queue_index
    monkeypatch.setattr(index, "place", fails)
    monkeypatch.setattr(index, "max_offset", fails)
    assert EntryWitness(index).place(b"topic-0", 0, 3) is None
    assert EntryWitness(index).end(b"topic-0", 0) == 0
