"""What makes a record valid: every part of it, its place, and its CRCs."""

from penstock import _kernel
from penstock.format.record import RecordFields, encode_record
from penstock.format.validity import Coverage


def test_coverage_has_what_its_ranges_say_and_the_kernel_agrees() -> None:
    coverage = Coverage.of([(10, 20), (5, 5), (30, 40)])
    record = encode_record(RecordFields(topic=b"t", body=b"b"))
    for at in range(50):
        is_covered = coverage.has(at)
        assert is_covered == (10 <= at < 20 or 30 <= at < 40)
        whole = record[:28] + at.to_bytes(8, "big") + record[36:]
        found = _kernel.message(whole, at, None, 0, 0, coverage.packed)
        assert (found is None) == is_covered, "it ends in no CRC of its own"
    assert coverage.has_all(12, 20)
    assert not coverage.has_all(12, 31)
    assert Coverage.of([(0, 5), (5, 9)]).has_all(0, 9)
