"""Rows sent around in place of records, and other plain values: what dispatchers make of them is what they make of records."""

import numpy as np
import pytest

from penstock.contracts.dispatcher import DispatchBatch
from penstock.errors import PluginError
from penstock.testing import WrittenLog
from penstock_tools.segmentwise.checkup import pack, unpack
from penstock_tools.segmentwise.reindex import condense, restore, shard_rows

COLUMNS = ("log_offsets", "sizes", "queues", "queue_offsets", "store_times_ms", "transaction_types", "tag_codes", "topic_rows")  # fmt: skip


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> DispatchBatch:
    (found,) = WrittenLog(tmp_path_factory.mktemp("rows") / "s", 60).batches()
    return found


def test_what_was_condensed_comes_back(batch: DispatchBatch) -> None:
    again = restore(condense(batch, keys=True))
    assert (again.start_offset, again.end_offset, len(again)) == (0, batch.end_offset, 60)
    assert again.topics == batch.topics
    for name in COLUMNS:
        assert getattr(again, name).tolist() == getattr(batch, name).tolist(), name
    assert again.keys.hashes.tolist() == batch.keys.hashes.tolist()


def test_keys_go_with_all_rows_or_not_at_all(batch: DispatchBatch) -> None:
    rows = np.array([3, 5])
    some = restore(condense(batch, rows, keys=False))
    assert some.log_offsets.tolist() == batch.log_offsets[rows].tolist()
    assert len(some.keys.rows) == 0
    with pytest.raises(ValueError, match="only be stored with all rows"):
        condense(batch, rows, keys=True)


def test_what_the_rows_do_not_have_is_an_error_that_says_what_to_do(batch: DispatchBatch) -> None:
    again = restore(condense(batch, keys=False))
    with pytest.raises(PluginError, match=r"without that dispatcher in index\.use"):
        again.message(0)


def test_each_row_is_in_one_shard_and_a_queue_in_one_only(batch: DispatchBatch) -> None:
    shards = dict(shard_rows(batch, 3))
    assert sorted(np.concatenate([*shards.values()]).tolist()) == list(range(60))
    places = [{(int(batch.topic_rows[r]), int(batch.queues[r])) for r in rows} for rows in shards.values()]  # fmt: skip
    assert sum(map(len, places)) == len(set().union(*places)) == 6
    assert list(dict(shard_rows(batch, 1))) == [0]


def test_plain_values_survive_being_packed() -> None:
    value = ({("t", 1): 5, "x": None}, [(1, 2)], 1.5, True)
    assert unpack(pack(value)) == value
    with pytest.raises(PluginError, match="is_splittable"):
        pack(object())
