"""Which decisions have their messages in the log."""

from pathlib import Path

from penstock import Message
from penstock.log.decided import decided_batches
from penstock.testing import open_store


def test_the_decisions_of_batches_are_found_from_a_log_offset_on(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert store.decided_batches(0) == set()
        ends = [0]
        for decision in (5, (1 << 40) + 6, 7):
            batch = store.message_batch()
            batch.add_many([Message("t", b"1"), Message("t", b"2")])
            ends.append(batch.append(decision=decision)[1].log_offset)
            store.put("t", b"between")
        batch = store.message_batch()
        batch.add(Message("t", b"of no decision"))
        batch.append()
        store.put_many([Message("t", b"1"), Message("t", b"2")], atomic=True)
        assert store.decided_batches(0) == {5, 6, 7}
        assert store._engine is not None
        last = store.flush()
        assert decided_batches(store._engine.log, last) == set()
        assert store.decided_batches(ends[1]) == {6, 7}, "from within the first one"
