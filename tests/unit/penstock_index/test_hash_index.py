"""The hash index: files of keys, which are full, lost, trimmed or made again."""

from pathlib import Path

import attrs
import pytest

from penstock.contracts import NoOptions, Trust
from penstock.contracts.index_entries import key_hash
from penstock.testing import WrittenLog, make_context
from penstock_index.hash_index import HashIndexDispatcher


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 700)


def opened(log: WrittenLog, root: Path, durable: int = 0) -> HashIndexDispatcher:
    made = HashIndexDispatcher(NoOptions(), make_context(root))
    made.load(Trust(log=log.view, durable_offset=durable, is_clean=False, was_abnormal=False))
    for batch in log.batches(made.progress):
        made.dispatch(batch)
    return made


def found(index: HashIndexDispatcher, key: str) -> list[int]:
    return list(index.candidates("topic-1", key, 0, 1 << 60))


def test_a_key_leads_to_its_record_over_many_files(log: WrittenLog, tmp_path: Path) -> None:
    index = opened(log, tmp_path)
    assert len(list((tmp_path / "index").iterdir())) > 1
    for row in (1, 333, 699):
        assert log.offsets()[row] in found(index, f"only-{row}")
    assert key_hash("topic-1", "x") >= 0


def test_no_key_is_in_it_twice(log: WrittenLog, tmp_path: Path) -> None:
    index = opened(log, tmp_path)
    for batch in log.batches():
        index.dispatch(batch)
    at = log.offsets()[333]
    assert found(index, "only-333").count(at) == 1


def test_a_cut_forgets_the_keys_after_it(log: WrittenLog, tmp_path: Path) -> None:
    index = opened(log, tmp_path)
    cut = log.offsets()[333]
    index.truncate(cut)
    assert index.progress == cut
    assert all(at < cut for row in (331, 333, 699) for at in found(index, f"only-{row}"))
    assert log.offsets()[331] in found(index, "only-331")


def test_files_of_an_unknown_writer_are_kept_as_far_as_they_go(
    log: WrittenLog, tmp_path: Path
) -> None:
    """No offset is known to be durable then; the last record that has keys is dispatched again."""
    index = opened(log, tmp_path)
    index.flush()
    index.close()
    again = HashIndexDispatcher(NoOptions(), make_context(tmp_path))
    trust = Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False)
    assert again.load(trust) == []
    keyed = [row for row in range(700) if row % 4]
    assert again.progress == log.offsets()[keyed[-1]]
    assert log.offsets()[333] in found(again, "only-333")
    again.close()
    ours = HashIndexDispatcher(NoOptions(), make_context(tmp_path))
    (text,) = ours.load(attrs.evolve(trust, durable_offset=1))
    assert (ours.progress, text) == (1, "cut index entries after log offset 1; rebuilt")
    ours.close()
