import pytest

from penstock_replicate.master.admission import parting, refusal
from penstock_replicate.wire.frames import EpochPair, Follow, Hello, RangeDigest

ONE, OTHER = "00" * 32, "ff" * 32


def hello(end: int = 1000, epochs: tuple[EpochPair, ...] = ((1, 0),), **given: object) -> Hello:
    facts: dict[str, object] = {
        "history": "ab" * 16, "epochs": epochs, "segment_bytes": 4096, "min_offset": 0, "end_offset": end, "store": "s",
        "nonce": "cd" * 32, "needs_proof": False,
    }  # fmt: skip
    return Hello(**(facts | given))  # type: ignore[arg-type]  # facts of a test


def code(mine: Hello, theirs: Hello, follow: Follow, found: str | None = ONE) -> str | None:
    refused = refusal(mine, theirs, follow, lambda _start, _stop: found)
    return None if refused is None else str(refused.code)


def at(end: int, *digests: RangeDigest) -> Follow:
    return Follow(end_offset=end, is_empty=False, digests=digests)


EMPTY = Follow(end_offset=0, is_empty=True)


def test_a_copy_goes_on_and_an_empty_one_begins() -> None:
    assert code(hello(), hello(500), at(500, RangeDigest(0, 500, ONE))) is None
    assert code(hello(), hello(1000), at(1000)) is None
    assert code(hello(), hello(0, (), history=None), EMPTY) is None


def test_other_sizes_of_files_are_refused_with_both_numbers() -> None:
    refused = refusal(hello(), hello(0, segment_bytes=8192), EMPTY, lambda _a, _b: None)
    assert refused is not None
    assert refused.facts == {"master_segment_bytes": 4096, "follower_segment_bytes": 8192}
    assert "4096" in refused.text
    assert "8192" in refused.text


def test_another_history_is_refused() -> None:
    assert code(hello(), hello(500, history="ef" * 16), at(500)) == "history"


def test_a_longer_log_is_refused() -> None:
    assert code(hello(), hello(1500), at(1500)) == "longer"


def test_a_position_that_is_removed_is_refused() -> None:
    assert code(hello(min_offset=600), hello(500), at(500)) == "removed"


def test_bytes_that_differ_are_refused() -> None:
    assert code(hello(), hello(500), at(500, RangeDigest(0, 500, OTHER))) == "differs"


def test_a_log_without_a_history_must_show_that_it_is_the_same() -> None:
    theirs = hello(500, (), history=None)
    assert code(hello(), theirs, at(500, RangeDigest(0, 500, ONE))) is None
    assert code(hello(), theirs, at(500)) == "differs"
    assert code(hello(), theirs, at(500, RangeDigest(0, 500, ONE)), None) == "differs"


def test_a_master_that_was_replaced_is_told() -> None:
    refused = refusal(hello(), hello(900, ((1, 0), (2, 700))), at(900), lambda _a, _b: None)
    assert refused is not None
    assert (refused.code, refused.facts["part_at"]) == ("stale-master", 700)


def test_a_former_master_is_told_where_the_logs_part() -> None:
    """It went on after its follower was promoted: two masters of one history."""
    mine = hello(1000, ((1, 0), (2, 700)))
    refused = refusal(mine, hello(900), at(900), lambda _a, _b: None)
    assert refused is not None
    assert (refused.code, refused.facts["part_at"]) == ("diverged", 700)
    assert code(mine, hello(700), at(700)) is None
    assert code(mine, hello(600), at(600)) is None


def test_two_promotions_of_one_follower_each_are_told_apart() -> None:
    mine, theirs = hello(1000, ((1, 0), (2, 700))), hello(900, ((1, 0), (2, 800)))
    assert code(mine, theirs, at(900)) == "diverged"


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (((1, 0),), ((1, 0),), 500),
        (((1, 0), (2, 300)), ((1, 0),), 300),
        (((1, 0),), ((1, 0), (2, 400)), 400),
        (((1, 0), (2, 300)), ((1, 0), (2, 400)), 300),
        (((1, 0), (2, 300), (3, 450)), ((1, 0), (2, 300)), 450),
        (((5, 100),), ((6, 200),), 100),
        ((), (), 500),
    ],
)
def test_logs_part_where_their_epochs_do(
    mine: tuple[EpochPair, ...], theirs: tuple[EpochPair, ...], expected: int
) -> None:
    assert parting(mine, 1000, theirs, 500) == expected
