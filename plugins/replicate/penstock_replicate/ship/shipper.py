"""Ships a log, round after round: what is new, then the manifest that names it, then the removal of what no manifest needs.

A round may end at any point, by an error or by a kill: the next one, of this process or another, finds the newest manifest and goes
on from it. Objects that no manifest names are removed then.
"""

import hashlib
import json
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs

from penstock.contracts import ReplicatedLog
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock.files import Files
from penstock_replicate.beside import SideReader
from penstock_replicate.ship import keeping
from penstock_replicate.ship.archive import Archive
from penstock_replicate.ship.identity import Identity
from penstock_replicate.ship.manifest import (
    MANIFEST_BYTES_MAX,
    LogPiece,
    Manifest,
    ManifestName,
    SideVersion,
    decode_manifest,
    encode_manifest,
    manifest_names,
    side_name,
    side_numbers,
)
from penstock_replicate.ship.planning import Upload, plan, with_uploaded
from penstock_replicate.ship.ship_errors import ArchiveError, OtherLogError
from penstock_replicate.ship.side_bundle import encode_sides, read_sides
from penstock_replicate.ship.uploading import digest_of, ship_range

logger = get_logger(__name__)

OWNER = "owner.json"
_OWNER_BYTES_MAX = 4096
# So many bytes at the end of what was shipped are compared with the log.
TAIL_BYTES = 64 << 10
# The manifest after so many objects, however many are left: a history is copied in parts, and a part is not copied again.
_OBJECTS_MAX = 16


@attrs.frozen(kw_only=True)
class ShipLimits:
    """What a shipper is asked for; see the options of the replicator `ship`."""

    generations: int = 16
    retention_ms: int = 0
    compress: str = "none"
    parallel: int = 4


@attrs.frozen
class SideSnapshot:
    """The files beside the log, encoded, and a log offset before which the log has everything that they speak of."""

    data: bytes
    log_offset: int


class Shipper:
    """Ships one log to one archive. Not thread-safe, but for `manifest`.

    Args:
        log: the log.
        archive: where to.
        identity: whose log it is.
        files: the file system, for the files beside the log.
        now_ms: the wall clock.
        limits: options.
        is_stopped: whether what is under way is to be given up.

    Attributes:
        manifest: the newest manifest; None before it was read, or if there is none yet.
        shipped_bytes: bytes of objects written by this process.
    """

    def __init__(
        self,
        log: ReplicatedLog,
        archive: Archive,
        identity: Identity,
        *,
        files: Files,
        now_ms: Callable[[], int],
        limits: ShipLimits,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._archive = archive
        self._identity = identity
        self._files = files
        self._now_ms = now_ms
        self._limits = limits
        self._is_stopped = is_stopped
        self._reader = SideReader(files, log.root)
        self._nonce = uuid.uuid4().hex
        self._is_resumed = False
        self.manifest: Manifest | None = None
        self.shipped_bytes = 0
        self._number = 0
        # Names of the manifests and sides that are there, and the newest manifests themselves.
        self._names: list[ManifestName] = []
        self._sides: list[int] = []
        self._recent: deque[Manifest] = deque()
        self._snapshot: SideSnapshot | None = None
        # What the last snapshot holds, and its bytes.
        self._contents: dict[str, bytes] | None = None
        self._encoded = b""
        self._shipped_side = b""

    @property
    def end(self) -> int:
        """The log offset before which everything is in the archive, as far as it was shipped at all."""
        return self.manifest.end if self.manifest is not None else 0

    def round(self) -> bool:
        """Ship what is new; return whether more is waiting.

        Raises `ArchiveError` if the archive cannot be reached or used, `OtherLogError` if it is not this log's.
        """
        if not self._is_resumed:
            self._resume()
        # Taken before the end is: what a snapshot speaks of is before the end that is read after it.
        snapshot = self._snapshot or self._take_snapshot()
        end = min(self._log.visible_offset, self._log.flushed_offset)
        pieces = self.manifest.pieces if self.manifest is not None else ()
        uploads = plan(pieces, self._log.min_offset, end, self._log.segment_bytes)
        now = uploads[:_OBJECTS_MAX]
        reached = now[-1].stop if now else self.end
        is_ripe = snapshot.log_offset <= max(reached, self._log.min_offset)
        self._snapshot = None if is_ripe else snapshot
        is_new_side = is_ripe and hashlib.sha256(snapshot.data).digest() != self._shipped_side
        if not now and not is_new_side:
            return False
        self._check_owner()
        made = self._ship(now)
        self._write(with_uploaded(pieces, made), snapshot if is_new_side else None)
        return len(uploads) > len(now)

    def _take_snapshot(self) -> SideSnapshot:
        contents = read_sides(self._files, self._log.root, self._reader)
        if contents != self._contents:
            self._contents, self._encoded = contents, encode_sides(contents)
        return SideSnapshot(self._encoded, self._log.visible_offset)

    def _ship(self, uploads: Sequence[Upload]) -> list[LogPiece]:
        def ship(upload: Upload) -> LogPiece:
            return ship_range(
                self._archive, self._log, upload, self._limits.compress, self._is_stopped
            )

        workers = min(self._limits.parallel, len(uploads))
        if workers <= 1:
            made = [ship(upload) for upload in uploads]
        else:
            with ThreadPoolExecutor(workers, "penstock-ship") as pool:
                made = list(pool.map(ship, uploads))
        self.shipped_bytes += sum(piece.size for piece in made)
        return made

    # --- the manifest

    def _write(self, pieces: tuple[LogPiece, ...], snapshot: SideSnapshot | None) -> None:
        self._number += 1
        now_ms = self._now_ms()
        side = self.manifest.side if self.manifest is not None else None
        if snapshot is not None:
            side = self._write_side(snapshot, now_ms)
        newest_ms = min(now_ms, max((piece.last_ms for piece in pieces), default=now_ms))
        kept = keeping.kept_pieces(
            pieces, self._log.min_offset, newest_ms, self._limits.retention_ms
        )
        start, sha256 = self._tail(kept)
        manifest = Manifest(
            number=self._number, time_ms=now_ms, history=self._identity.history, epoch=self._identity.epoch,
            segment_bytes=self._log.segment_bytes, pieces=kept, tail_start=start, tail_sha256=sha256, side=side,
        )  # fmt: skip
        self._archive.put(manifest.name, [encode_manifest(manifest)])
        if snapshot is not None:
            self._shipped_side = hashlib.sha256(snapshot.data).digest()
        self.manifest = manifest
        self._recent.append(manifest)
        self._names.append(ManifestName(manifest.number, manifest.time_ms))
        self._sweep(now_ms)

    def _write_side(self, snapshot: SideSnapshot, now_ms: int) -> SideVersion:
        self._archive.put(side_name(self._number), [snapshot.data])
        self._sides.append(self._number)
        self.shipped_bytes += len(snapshot.data)
        return SideVersion(
            number=self._number, size=len(snapshot.data), sha256=hashlib.sha256(snapshot.data).hexdigest(),
            log_offset=snapshot.log_offset, time_ms=now_ms,
        )  # fmt: skip

    def _tail(self, pieces: tuple[LogPiece, ...]) -> tuple[int, str]:
        """Return where the last bytes begin that the log and the archive both have, and their digest."""
        if not pieces:
            return 0, digest_of(self._log, 0, 0)
        end = pieces[-1].stop
        start = max(pieces[0].start, end - TAIL_BYTES, self._log.min_offset)
        if self.manifest is not None and self.end == end:
            return self.manifest.tail_start, self.manifest.tail_sha256
        return start, digest_of(self._log, start, end)

    # --- removal

    def _sweep(self, now_ms: int) -> None:
        """Remove what is no longer needed; an object that cannot be removed is tried again by the next process."""
        try:
            gone = list[Manifest]()
            while len(self._recent) > self._limits.generations:
                gone.append(self._recent.popleft())
            for piece in {piece for manifest in gone for piece in manifest.pieces}:
                if not any(piece in manifest.pieces for manifest in self._recent):
                    self._archive.remove(piece.name)
            self._sweep_manifests(now_ms)
        except ArchiveError as error:
            logger.warning("%s; it is not needed, and is removed later", error)

    def _sweep_manifests(self, now_ms: int) -> None:
        kept = keeping.kept_manifests(
            self._names,
            now_ms,
            generations=self._limits.generations,
            retention_ms=self._limits.retention_ms,
        )
        for name in sorted(set(self._names) - set(kept)):
            self._archive.remove(name.text)
            self._names.remove(name)
        for number in sorted(set(self._sides) - keeping.kept_sides(self._sides, kept)):
            self._archive.remove(side_name(number))
            self._sides.remove(number)

    # --- the beginning

    def _resume(self) -> None:
        """Read what is in the archive, compare it with the log, and become its owner."""
        self._names = manifest_names(self._archive.names("manifests"))
        self._sides = side_numbers(self._archive.names("side"))
        self._number = max([*(name.number for name in self._names), *self._sides], default=0)
        recent = newest_manifests(self._archive, self._names, self._limits.generations)
        if self._names and not recent:
            raise ArchiveError(
                self._archive.text, "manifests",
                "none of the newest manifests is valid, so nothing is shipped there: see penstock restore --list, or ship to another URL",
            )  # fmt: skip
        newest = recent[-1] if recent else None
        if newest is not None:
            self._compare(newest)
        self._archive.put(OWNER, [self._owner()])
        self.manifest = newest
        self._recent = deque(recent)
        self._shipped_side = bytes.fromhex(newest.side.sha256) if newest and newest.side else b""
        present = [f"log/{name}" for name in self._archive.names("log")]
        for name in keeping.unnamed(present, [manifest.pieces for manifest in recent]):
            self._archive.remove(name)
        self._is_resumed = True

    def _compare(self, newest: Manifest) -> None:
        """Raise `OtherLogError` unless what was shipped is a beginning of this log."""
        mine = self._identity
        if newest.history != mine.history:
            raise self._other(
                f"it holds the log of another store, of history {newest.history}; this store, {self._log.root}, has history {mine.history}"
            )
        if newest.epoch > mine.epoch:
            raise self._other(
                f"a copy of this store that was promoted or restored later, to epoch {newest.epoch}, ships there; this store, "
                f"{self._log.root}, is in epoch {mine.epoch}"
            )
        if newest.segment_bytes != self._log.segment_bytes:
            raise self._other(
                f"its log has segments of {newest.segment_bytes} bytes, that of {self._log.root} of {self._log.segment_bytes}"
            )
        end = self._log.flushed_offset
        if newest.end > end:
            raise self._other(
                f"its log ends at log offset {newest.end}, that of {self._log.root} already at {end}: the store was restored, or set back"
            )
        try:
            found = digest_of(self._log, newest.tail_start, newest.end)
        except OffsetError:
            # Deleted by retention: there is nothing to compare, and nothing that is shipped again.
            return
        if found != newest.tail_sha256:
            raise self._other(
                f"the log of {self._log.root} has other bytes from log offset {newest.tail_start} to {newest.end} than were shipped"
            )

    def _other(self, reason: str) -> OtherLogError:
        advice = "nothing was written there: ship to another URL, or move that archive away"
        return OtherLogError(self._archive.text, "", f"{reason}; {advice}")

    def _owner(self) -> bytes:
        about = {
            "process": self._nonce,
            "history": self._identity.history,
            "epoch": self._identity.epoch,
            "store": str(self._log.root),
            "time_ms": self._now_ms(),
        }
        return json.dumps(about).encode()

    def _check_owner(self) -> None:
        """Raise `OtherLogError` if another process has begun to ship there since."""
        try:
            about = json.loads(self._archive.read(OWNER, _OWNER_BYTES_MAX))
            if about["process"] == self._nonce:
                return
            store, epoch = str(about["store"])[:200], str(about["epoch"])[:40]
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError) as error:
            # The archive was emptied, or another one put in its place.
            self._is_resumed = False
            raise ArchiveError(
                self._archive.text, OWNER, f"it is not what this process wrote ({error}): the archive is read again"
            ) from error  # fmt: skip
        raise self._other(
            f"another process ships there now, for the store at {store} in epoch {epoch}, so this one, for {self._log.root} in epoch "
            f"{self._identity.epoch}, has stopped until it is opened again"
        )


def read_manifest(archive: Archive, name: ManifestName) -> Manifest:
    """Return a manifest; raises `ArchiveError` if it is missing or not valid."""
    try:
        return decode_manifest(archive.read(name.text, MANIFEST_BYTES_MAX), name)
    except FileNotFoundError as error:
        raise ArchiveError(archive.text, name.text, "it is missing") from error
    except ValueError as error:
        raise ArchiveError(archive.text, name.text, f"it is not valid: {error}") from error


def newest_manifests(archive: Archive, names: Sequence[ManifestName], most: int) -> list[Manifest]:
    """Return those of the newest `most` manifests that are valid, oldest first."""
    found = []
    for name in names[-most:]:
        try:
            found.append(read_manifest(archive, name))
        except ArchiveError as error:
            if not isinstance(error.__cause__, ValueError | FileNotFoundError):
                raise
            logger.warning("%s; an older manifest is used", error)
    return found
