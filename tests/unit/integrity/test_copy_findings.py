"""A copy that was made while its store was written: what copying explains is one finding, the rest stays."""

from pathlib import Path

from penstock.contracts.findings import COPYING, Finding
from penstock.integrity.copy_findings import CopyFindings
from penstock.integrity.segment_digests import BLOCK_BYTES

ROOT = Path("/store")


def of(part: str, log_offset: int, what_now: str = "") -> Finding:
    return Finding(part, ROOT / part, 0, log_offset, f"{part} at {log_offset}", what_now)


def sifted(*found: Finding, log_end: int = 1000) -> list[Finding]:
    return list(CopyFindings(ROOT).sift(found, lambda: log_end))


def test_what_copying_explains_is_put_together() -> None:
    (finding,) = sifted(of("queue", 5, COPYING), of("marks", -1, COPYING), of("queue", 6, COPYING))
    assert "which explains 3 differences (marks, queue)" in finding.text
    assert (finding.part, finding.log_offset) == ("copy", 1000)
    assert "open the copy for writing once" in finding.what_now


def test_corruption_before_the_last_valid_record_is_never_explained() -> None:
    found = [of("log", 10), of("log", 999), of("queue", -1)]
    assert sifted(*found) == found


def test_what_lies_after_the_last_valid_record_is_explained() -> None:
    (finding,) = sifted(of("log", 1000), of("log", 5000))
    assert "2 differences" in finding.text


def test_what_seemed_the_end_is_corruption_once_valid_records_follow() -> None:
    """The log's end is known only as far as it was walked."""
    ends = iter([100, 1000])
    held = of("log", 500)
    assert list(CopyFindings(ROOT).sift([held], lambda: next(ends))) == [held]


def test_a_block_of_a_digest_may_reach_past_the_end() -> None:
    (finding,) = sifted(of("digest", 1), log_end=BLOCK_BYTES)
    assert finding.part == "copy"
    early = of("digest", 0)
    assert sifted(early, log_end=10 * BLOCK_BYTES) == [early]


def test_a_copy_without_differences_has_no_finding() -> None:
    assert sifted() == []
