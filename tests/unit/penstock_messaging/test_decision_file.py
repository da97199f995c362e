"""The file of decisions: what is on disk is read, a torn end is normal, and nothing is guessed about anything else."""

import json
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StorageError
from penstock.files import Files
from penstock.format.crc32c import crc32c
from penstock.testing import FaultyFiles
from penstock_messaging.transactions import decision_file
from penstock_messaging.transactions.decision_file import (
    AckDecision,
    DecisionFile,
    FoundDecisions,
    QueueAcks,
    decision_path,
    parse_decisions,
    read_decisions,
)

STORE = 77


def decision(number: int, *ranges: tuple[int, int]) -> AckDecision:
    """Return a decision about two queues."""
    acks = QueueAcks("billing", "orders", 3, 1 << 32, 5, 2, ranges or ((number, number + 1),))
    return AckDecision(
        number, 1000 + number, (acks, QueueAcks("g|\u00e4", "%RETRY%g", 0, 0, 1, 0, ((0, 9),)))
    )


def begun(root: Path, files: Files | None = None) -> DecisionFile:
    """Return a new file that can be appended to."""
    made = DecisionFile(files or Files(), root, STORE)
    made.replace(())
    return made


def found(root: Path) -> list[int]:
    """Return the ids in the file, which must be in order."""
    read = read_decisions(Files(), root)
    assert (read.store, read.trouble) == (STORE, "")
    return [each.id for each in read.decisions]


def test_what_is_decided_is_read(tmp_path: Path) -> None:
    assert read_decisions(Files(), tmp_path) == FoundDecisions()
    made = begun(tmp_path)
    some = [
        decision(number, (number, number + 3), (1 << 40, (1 << 40) + 1)) for number in (1, 2, 3)
    ]
    for each in some:
        made.append(each)
    assert read_decisions(Files(), tmp_path) == FoundDecisions(STORE, tuple(some))
    made.drop(2)
    assert found(tmp_path) == [1, 3]


def test_a_new_file_keeps_what_it_is_told_to(tmp_path: Path) -> None:
    made = begun(tmp_path)
    for number in range(1, 200):
        made.append(decision(number))
    assert not made.is_full or decision_path(tmp_path).stat().st_size >= decision_file.FULL_BYTES
    made.replace([decision(50), decision(99)])
    made.append(decision(200))
    assert found(tmp_path) == [50, 99, 200]
    made.remove()
    assert not decision_path(tmp_path).exists()
    made.remove()


def test_it_gets_full(tmp_path: Path) -> None:
    made = begun(tmp_path)
    number = 0
    while not made.is_full:
        number += 1
        made.append(decision(number))
    assert found(tmp_path) == list(range(1, number + 1))
    made.replace(())
    assert not made.is_full


def test_an_append_writes_no_metadata(tmp_path: Path) -> None:
    files = FaultyFiles()
    made = begun(tmp_path, files)
    size = decision_path(tmp_path).stat().st_size
    for number in range(1, 20):
        made.append(decision(number))
    assert decision_path(tmp_path).stat().st_size == size


def test_every_torn_end_is_the_end(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.append(decision(1))
    before = made._position
    made.append(decision(2))
    raw = decision_path(tmp_path).read_bytes()
    for cut in range(before, made._position, 3):
        for rest in (b"", bytes(len(raw) - cut)):
            if raw[cut : made._position].strip(b"\0"):
                read = parse_decisions(raw[:cut] + rest)
                assert ([each.id for each in read.decisions], read.trouble) == ([1], ""), cut


def test_a_flipped_bit_is_named_and_hides_nothing_else(tmp_path: Path) -> None:
    made = begun(tmp_path)
    for number in (1, 2, 3):
        made.append(decision(number))
    raw = decision_path(tmp_path).read_bytes()
    starts = [at for at in range(0, made._position, 64) if raw[at + 8 : at + 10] == b'{"']
    assert len(starts) == 4
    for position in range(starts[1], starts[2], 5):
        changed = bytearray(raw)
        changed[position] ^= 1 << position % 8
        read = parse_decisions(bytes(changed))
        if read.decisions == parse_decisions(raw).decisions:
            # Zeros between entries are not read.
            assert not raw[position]
            continue
        assert [each.id for each in read.decisions] == [2, 3], position
        assert "no entry" in read.trouble


def entry(text: bytes) -> bytes:
    """Return an entry with a correct CRC."""
    size = len(text).to_bytes(4, "little")
    made = size + crc32c(size + text).to_bytes(4, "little") + text
    return made + bytes(-len(made) % 64)


ACKS = ["g", "t", 0, 0, 1, 0, [[1, 2]]]


def hostile_rows() -> list[list[object]]:
    """Return acknowledgements of which one field cannot be."""
    wrong: list[object] = [None, -1, 1 << 70, "", "x" * 300, [], True, 1.5]
    rows: list[list[object]] = [
        [*ACKS[:at], value, *ACKS[at + 1 :]]
        for at in range(6)
        for value in wrong
        if not (at < 2 and value == "g")
    ]
    ranges: list[object] = [
        [[2, 2]],
        [[5, 1]],
        [[1, 3], [2, 4]],
        [[1, 2], [2, 3], [0, 1]],
        [[1]],
        7,
        [[-1, 4]],
    ]
    return rows + [[*ACKS[:6], each] for each in ranges]


def test_a_hostile_entry_with_a_correct_crc_decides_nothing() -> None:
    begin = entry(b'{"store":77}')
    good = entry(json.dumps({"id": 9, "log": 0, "acks": [ACKS]}).encode())
    for row in hostile_rows():
        text = json.dumps({"id": 1, "log": 0, "acks": [row]}).encode()
        read = parse_decisions(begin + entry(text) + good)
        assert [each.id for each in read.decisions] == [9], row
        assert "no decision" in read.trouble
    for text in (
        b"[]",
        b"{",
        b'{"id":1}',
        b'{"dropped":"1"}',
        b"[" * 100_000,
        b'{"store":0}',
        b"\xff",
    ):
        read = parse_decisions(begin + entry(text) + good)
        assert [each.id for each in read.decisions] == [9], text
        assert read.trouble, text


@pytest.mark.slow
def test_random_bytes_decide_nothing_and_raise_nothing() -> None:
    chance = Random(1)
    for _ in range(300):
        raw = chance.randbytes(chance.randint(1, 4000))
        assert parse_decisions(raw).decisions == ()
    # Each of these positions looks like the begin of an entry of 16 MiB.
    fake = ((16 << 20).to_bytes(4, "little") + bytes(4) + b'{"').ljust(64, b"x")
    assert parse_decisions(fake * 400_000).decisions == ()


@pytest.mark.parametrize("fails", ["pwrite", "sync"])
def test_nothing_is_appended_after_a_failure(fails: str, tmp_path: Path) -> None:
    files = FaultyFiles()
    made = begun(tmp_path, files)
    made.append(decision(1))
    files.plan.fail(fails, path="decisions", times=1)
    with pytest.raises(OSError, match="decisions"):
        made.append(decision(2))
    assert not made.is_open
    with pytest.raises(OSError, match="not open"):
        made.append(decision(2))
    made.replace([decision(1)])
    made.append(decision(3))
    assert found(tmp_path) == [1, 3]


def test_a_decision_that_is_too_large_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(tmp_path)
    monkeypatch.setattr(decision_file, "_TEXT_MAX", 200)
    ranges = [(each, each + 1) for each in range(0, 400, 2)]
    with pytest.raises(StorageError, match="nothing was stored"):
        made.append(decision(1, *ranges))
    assert made.is_open
    assert found(tmp_path) == []


def test_a_corrupt_file_is_kept_for_people(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.append(decision(1))
    aside = made.set_aside()
    assert aside.name == "decisions.corrupt-1"
    assert not decision_path(tmp_path).exists()
    made.close()
