"""Whose a record in the log is: topic, queue and queue offset, whatever lies there."""

import pytest

from penstock.testing import WrittenLog
from penstock_index.queue_claims import is_backed


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("claims") / "s", 30)


def test_a_record_backs_its_own_place_only(log: WrittenLog) -> None:
    at = log.offsets()[7]
    assert is_backed(log.view, ("topic-1", 1), 1, at)
    for key, ordinal in ((("topic-0", 1), 1), (("topic-1", 2), 1), (("topic-1", 1), 2), (("topic-", 1), 1), (("topic-11", 1), 1)):  # fmt: skip
        assert not is_backed(log.view, key, ordinal, at)


def test_where_no_record_begins_nothing_is_backed(log: WrittenLog) -> None:
    for at in (log.offsets()[7] + 1, log.end_offset, 1 << 40, -1):
        assert not is_backed(log.view, ("topic-1", 1), 1, at)
