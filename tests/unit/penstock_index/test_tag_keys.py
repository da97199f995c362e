"""Tags in the key index, as newer brokers write them: recognised, and not taken for anything else."""

from pathlib import Path

import pytest

from penstock.contracts import NoOptions, Trust
from penstock.files import Files
from penstock.format.java_hash import index_hash
from penstock.testing import WrittenLog, make_context
from penstock.testing.kit import SMALL
from penstock_index.hash_index import HashIndexDispatcher
from penstock_index.index_file import Peek
from penstock_index.tag_keys import has_tag_keys, tag_key_hashes


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 60)


def peek(log: WrittenLog, root: Path) -> Peek:
    index = HashIndexDispatcher(NoOptions(), make_context(root))
    index.load(Trust(log=log.view, durable_offset=0, is_clean=False, was_abnormal=False))
    for batch in log.batches():
        index.dispatch(batch)
    index.flush()
    (path,) = (root / "index").iterdir()
    return Peek(Files().open(path, writable=True), SMALL)


def test_each_tag_has_the_hash_that_brokers_give_it(log: WrittenLog) -> None:
    (batch,) = log.batches()
    rows, hashes = tag_key_hashes(batch)
    tagged = [row for row, message in enumerate(log.sent) if message.tag]
    assert rows.tolist() == tagged
    assert hashes.tolist()[0] == index_hash(f"{log.sent[1].topic}#T#{log.sent[1].tag}")


def test_an_index_of_ours_has_none(log: WrittenLog, tmp_path: Path) -> None:
    assert not has_tag_keys([peek(log, tmp_path)], log.view)
    assert not has_tag_keys([], log.view)


def test_one_tag_among_the_newest_entries_tells(log: WrittenLog, tmp_path: Path) -> None:
    found = peek(log, tmp_path)
    entries = found.entries()
    last = max(row for row, message in enumerate(log.sent) if message.tag)
    message = log.sent[last]
    at = log.offsets()[last]
    row = entries["log_offset"].tolist().index(at)
    with found.path.open("r+b") as file:
        file.seek(found.position_of(row + 1))
        file.write(index_hash(f"{message.topic}#T#{message.tag}").to_bytes(4, "big"))
    assert has_tag_keys([Peek(Files().open(found.path), SMALL)], log.view)
