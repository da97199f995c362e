"""What an archive keeps."""

from tests.unit.penstock_replicate.test_manifest import piece

from penstock_replicate.ship.keeping import kept_manifests, kept_pieces, kept_sides, unnamed
from penstock_replicate.ship.manifest import ManifestName

HOUR = 3_600_000


def test_the_newest_are_kept_and_older_ones_are_thinned() -> None:
    now = 100 * 24 * HOUR
    names = [ManifestName(n, now - (3000 - n) * 60_000) for n in range(3000)]
    kept = kept_manifests(names, now, generations=5, retention_ms=0)
    assert kept[-5:] == names[-5:]
    fine = [name for name in kept[:-5] if now - name.time_ms < 24 * HOUR]
    assert 143 <= len(fine) <= 146
    coarse = [name for name in kept if now - name.time_ms >= 24 * HOUR]
    assert 26 <= len(coarse) <= 28
    assert kept_manifests(kept, now, generations=5, retention_ms=0) == kept
    short = kept_manifests(names, now, generations=5, retention_ms=HOUR)
    assert all(now - name.time_ms <= HOUR for name in short)
    assert kept_manifests(names[:3], now, generations=5, retention_ms=1) == names[:3]


def test_sides_are_kept_for_the_manifests_that_have_them() -> None:
    kept = [ManifestName(3, 0), ManifestName(8, 0), ManifestName(9, 0)]
    assert kept_sides([1, 2, 4, 7, 8, 12], kept) == {2, 8, 12}
    assert kept_sides([5], [ManifestName(3, 0)]) == {5}
    assert kept_sides([], kept) == set()
    assert kept_sides([1], []) == {1}


def test_segments_leave_when_they_are_old_and_deleted_in_the_store() -> None:
    pieces = [piece(n * 4096, (n + 1) * 4096, weight=0, last_ms=(n + 1) * 10) for n in range(5)]
    assert kept_pieces(pieces, 1 << 40, 50, 0) == tuple(pieces)
    assert kept_pieces(pieces, 1 << 40, 50, 25) == tuple(pieces[2:])
    assert kept_pieces(pieces, 4096, 50, 25) == tuple(pieces[1:])
    assert kept_pieces(pieces, 1 << 40, 1 << 40, 1) == tuple(pieces[4:])
    assert kept_pieces([], 0, 0, 1) == ()


def test_objects_that_no_manifest_names_are_found() -> None:
    pieces = (piece(0, 10),)
    assert unnamed([pieces[0].name, "log/x", "log/y"], [pieces]) == ["log/x", "log/y"]
