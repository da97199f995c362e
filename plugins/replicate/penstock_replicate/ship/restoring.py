"""Makes a store from an archive: the log up to a point, the files beside it as they were then, queues and index made anew.

Everything is written below `restore-unfinished` in the target, and renamed when all of it is verified and durable, the log last: what
a killed restore leaves is not opened as a store. An error removes what was written.

The new store is a master of the same history in a new epoch. Its queues and index are built by opening it, and then verified.
"""

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

import penstock
from penstock.errors import PenstockError
from penstock.files import Files
from penstock.format import arguments
from penstock_replicate.beside import apply
from penstock_replicate.beside.side_names import SIDE_NAMES
from penstock_replicate.ship.archive import Archive, open_archive
from penstock_replicate.ship.identity import Identity, write_doubts, write_restored
from penstock_replicate.ship.log_writer import LogWriter
from penstock_replicate.ship.manifest import SIDE_STORED_MAX, LogPiece, Manifest
from penstock_replicate.ship.record_walk import RecordWalk
from penstock_replicate.ship.restore_point import Survey, chosen_pieces, side_manifest, survey
from penstock_replicate.ship.ship_errors import ArchiveError, RestoreError
from penstock_replicate.ship.side_bundle import GEOMETRY, decode_sides

STAGE = "restore-unfinished"
_UNPACKED_BYTES = 1 << 20
_PERCENT_SPARE = 1.02
Progress = Callable[[int, int], None]


@attrs.frozen(kw_only=True)
class RestoreReport:
    """What was restored.

    Attributes:
        path: the new store.
        archive: where it came from.
        generation: number of the manifest.
        shipped_ms: when that manifest was written, in Unix milliseconds.
        log_begin: log offset of the first byte.
        log_end: log offset after the last record.
        archive_end: log offset after the last byte that the archive has.
        last_time_ms: store time of the last record, if a point was given; otherwise of one near the end.
        objects: how many objects were read, each compared with its digest.
        bytes: bytes of log.
        side_generation: number of the manifest whose files beside the log were taken; None if none fits that point.
        side_files: their names.
        history: of the log.
        epoch: of the new store.
        notes: what else is to be known.
        findings: what `verify` found in the new store; none is expected.
    """

    path: str
    archive: str
    generation: int
    shipped_ms: int
    log_begin: int
    log_end: int
    archive_end: int
    last_time_ms: int
    objects: int
    bytes: int
    side_generation: int | None
    side_files: tuple[str, ...]
    history: str
    epoch: int
    notes: tuple[str, ...]
    findings: tuple[str, ...]


def restore(
    url: str,
    target: str | Path,
    *,
    time: float | datetime | None = None,
    offset: int | None = None,
    generation: int | None = None,
    on_progress: Progress | None = None,
    files: Files | None = None,
) -> RestoreReport:
    """Make a store at `target` from the archive at `url`; return what was restored.

    Args:
        url: the folder or URL that `[replicate.ship]` shipped to.
        target: a folder that does not exist, or is empty.
        time: only records that were stored by then: Unix milliseconds or a datetime with a time zone.
        offset: only records that end at this log offset or before it.
        generation: the number of a manifest, of the newest ones; None for the newest valid one.
        on_progress: called with the bytes of log that are done, and all.
        files: the file system of the target.

    Raises:
        ArchiveError: an object is missing or corrupt, or the point is not in the archive; nothing is left at `target`.
        RestoreError: `target` is not empty, or has no room.
    """
    call = "restore"
    url = arguments.text(call, "url", url)
    root = arguments.folder(call, "target", target).absolute()
    last_ms = None if time is None else arguments.time_ms(call, "time", time, up=False)
    last_offset = None if offset is None else arguments.whole(call, "offset", offset)
    if generation is not None:
        arguments.whole(call, "generation", generation)
    files = files or Files()
    archive = open_archive(url, files)
    _check_target(files, root)
    found = survey(archive, generation)
    return _Restoring(files, archive, root, found, on_progress or _ignore).run(last_ms, last_offset)


def list_archive(url: str, *, files: Files | None = None) -> Survey:
    """Return what the archive at a folder or URL can be restored to."""
    return survey(open_archive(arguments.text("list_archive", "url", url), files or Files()))


def _ignore(_done: int, _total: int) -> None:
    return


def _check_target(files: Files, root: Path) -> None:
    if not files.exists(root):
        return
    if not files.is_folder(root):
        raise RestoreError(f"{root} is a file or a link, not a folder: name one that does not exist, or is empty")  # fmt: skip
    entries = files.entries(root)
    if entries:
        names = [entry.name for entry in entries]
        hint = (
            "; a restore was interrupted there: remove that folder, and restore again"
            if STAGE in names
            else ""
        )
        raise RestoreError(f"{root} is not empty, it has {names[0]!r}{hint}; nothing was changed: name a folder that does not exist, or is empty")  # fmt: skip


class _Restoring:
    """One restore. Not thread-safe."""

    def __init__(
        self, files: Files, archive: Archive, root: Path, found: Survey, on_progress: Progress
    ) -> None:
        self._files = files
        self._archive = archive
        self._root = root
        self._stage = root / STAGE
        self._found = found
        self._on_progress = on_progress
        self._notes = list(found.passed_over)

    def run(self, last_ms: int | None, last_offset: int | None) -> RestoreReport:
        manifest = self._found.manifest
        pieces = chosen_pieces(self._archive.text, manifest.pieces, last_ms, last_offset)
        self._check_room(sum(piece.stop - piece.start for piece in pieces))
        if pieces and pieces[0] != manifest.pieces[0]:
            self._notes.append(
                f"the archive has a gap before log offset {pieces[0].start}: what is before it was not restored"
            )
        existed = self._files.exists(self._root)
        try:
            self._files.make_folder_durably(self._stage / "commitlog")
            end, time_ms = self._copy_log(pieces, last_ms, last_offset)
            begin = pieces[0].start if pieces else 0
            side = side_manifest(self._archive, self._found, end, last_ms)
            names = self._place_sides(manifest, side)
            identity = Identity(history=manifest.history, epoch=manifest.epoch)
            write_doubts(self._files, self._stage, end)
            epoch = write_restored(self._files, self._stage, identity, end)
            self._publish()
        except BaseException:
            self._clean_up(existed=existed)
            raise
        log_end, findings = self._build(manifest)
        if log_end != end:
            self._notes.append(
                f"the log was cut at log offset {log_end}, not {end}: the records after it are not valid, or of an atomic batch that is not whole"
            )
            write_restored(self._files, self._root, identity, log_end)
        return RestoreReport(
            path=str(self._root), archive=self._archive.text, generation=manifest.number, shipped_ms=manifest.time_ms,
            log_begin=begin, log_end=log_end, archive_end=manifest.end, last_time_ms=time_ms, objects=len(pieces),
            bytes=end - begin, side_generation=None if side is None else side.number, side_files=tuple(names),
            history=manifest.history, epoch=epoch, notes=tuple(self._notes), findings=tuple(findings),
        )  # fmt: skip

    def _check_room(self, needed: int) -> None:
        folder = self._root
        while not self._files.is_folder(folder) and folder != folder.parent:
            folder = folder.parent
        free = self._files.free_bytes(folder)[1]
        if needed * _PERCENT_SPARE > free:
            raise RestoreError(
                f"{self._root}: the log takes {needed} bytes, the disk has {free} left; nothing was written: free some, or restore elsewhere"
            )

    # --- the log

    def _copy_log(
        self, pieces: list[LogPiece], last_ms: int | None, last_offset: int | None
    ) -> tuple[int, int]:
        """Write the log; return its end, and the store time of the last record."""
        writer = LogWriter(
            self._files, self._stage / "commitlog", self._found.manifest.segment_bytes
        )
        total = sum(piece.stop - piece.start for piece in pieces)
        end, time_ms, done = 0, 0, 0
        try:
            for piece in pieces:
                walk = None
                if piece is pieces[-1] and (last_ms, last_offset) != (None, None):
                    walk = RecordWalk(piece.start, last_ms=last_ms, last_offset=last_offset)
                for data in self._copied(piece, writer, walk):
                    done += data
                    self._on_progress(done, total)
                end = piece.stop if walk is None else self._walked(piece, walk)
                time_ms = walk.time_ms or time_ms if walk is not None else piece.last_ms or time_ms
            writer.finish(end)
        except BaseException:
            writer.give_up()
            raise
        return end, time_ms

    def _copied(self, piece: LogPiece, writer: LogWriter, walk: RecordWalk | None) -> Iterator[int]:
        at = piece.start
        for data in unpacked(self._archive, piece):
            if walk is not None and not walk.is_over:
                walk.feed(data)
            kept = data if walk is None or not walk.is_over else data[: max(walk.end - at, 0)]
            if kept:
                writer.write(at, kept)
            at += len(data)
            yield len(data)

    def _walked(self, piece: LogPiece, walk: RecordWalk) -> int:
        if walk.reason is None and (walk.is_over or walk.end == piece.stop):
            return walk.end
        reason = walk.reason or f"its last record does not end at log offset {piece.stop}"
        raise ArchiveError(self._archive.text, piece.name, f"{reason}, so the point cannot be found in it")  # fmt: skip

    # --- beside it

    def _place_sides(self, manifest: Manifest, side: Manifest | None) -> list[str]:
        """Write the files beside the log, below the stage; return their names."""
        contents = {} if side is None else self._sides_of(side)
        if side is None and manifest.side is not None:
            contents = {GEOMETRY: self._sides_of(manifest).get(GEOMETRY, b"")}
            contents = {name: data for name, data in contents.items() if data}
            self._notes.append(
                "no version of the files beside the log fits that point: consumers and delays begin as in a new store"
            )
        for name, data in contents.items():
            if name in SIDE_NAMES:
                apply(self._files, self._stage, name, data)
            else:
                path = self._stage / name
                self._files.make_folder_durably(path.parent)
                self._files.write_whole(path, data)
        return sorted(contents)

    def _sides_of(self, manifest: Manifest) -> dict[str, bytes]:
        side = manifest.side
        assert side is not None
        try:
            data = self._archive.read(side.name, SIDE_STORED_MAX)
        except FileNotFoundError as error:
            raise ArchiveError(self._archive.text, side.name, f"it is missing, and manifest {manifest.number} names it") from error  # fmt: skip
        if len(data) != side.size or hashlib.sha256(data).hexdigest() != side.sha256:
            raise ArchiveError(self._archive.text, side.name, "it is corrupt: its digest is not that in the manifest")  # fmt: skip
        try:
            return decode_sides(data)
        except ValueError as error:
            raise ArchiveError(self._archive.text, side.name, str(error)) from error

    # --- the store

    def _publish(self) -> None:
        """Rename everything into the target, the log last."""
        names = [entry.name for entry in self._files.entries(self._stage)]
        for name in sorted(names, key=lambda name: name == "commitlog"):
            self._files.sync_folder(self._stage / name)
            self._files.rename(self._stage / name, self._root / name)
        self._files.remove_folder(self._stage)
        self._files.sync_folder(self._root)

    def _build(self, manifest: Manifest) -> tuple[int, list[str]]:
        """Open the store, which makes its queues and its index; return its end, and what `verify` finds."""
        # Retention would delete what was just restored, and extensions would deliver.
        settings: dict[str, Any] = {
            "retention.use": [],
            "extensions.use": [],
            "replicate.use": "none",
        }
        if not self._files.exists(self._root / GEOMETRY):
            settings["geometry.segment_bytes"] = manifest.segment_bytes
        try:
            with penstock.open(self._root, environ={}, files=self._files, **settings) as store:
                assert store.recovery is not None
                found = [f"{each.path}: {each.text}" for each in store.verify() if not each.is_note]
                return store.recovery.log_end, found
        except PenstockError as error:
            raise RestoreError(
                f"{self._root} has the archive's log, byte for byte, but does not open: {error}"
            ) from error

    def _clean_up(self, *, existed: bool) -> None:
        """Remove what was written, as far as that is possible."""
        with contextlib.suppress(OSError):
            for name in (STAGE, "commitlog", "config", "penstock"):
                _remove_tree(self._files, self._root / name)
            if not existed and self._files.is_folder(self._root):
                self._files.remove_folder(self._root)


def unpacked(archive: Archive, piece: LogPiece) -> Iterator[bytes]:
    """Yield the log's bytes of an object; raises `ArchiveError` at the end if it is not the one that the manifest names."""
    digest, size, length = hashlib.sha256(), 0, piece.stop - piece.start
    given = 0
    try:
        unpack = _unpacker(piece)
        for data in archive.chunks(piece.name, piece.size):
            digest.update(data)
            size += len(data)
            for part in unpack(data):
                given += len(part)
                if given > length:
                    raise ArchiveError(archive.text, piece.name, f"it has more than the {length} bytes of log that the manifest says")  # fmt: skip
                yield part
    except FileNotFoundError as error:
        raise ArchiveError(archive.text, piece.name, f"it is missing; it holds log offsets {piece.start} to {piece.stop}") from error  # fmt: skip
    except zlib.error as error:
        raise ArchiveError(archive.text, piece.name, f"it is corrupt ({error})") from error
    if size != piece.size:
        raise ArchiveError(archive.text, piece.name, f"it is truncated: it has {size} bytes, the manifest says {piece.size}")  # fmt: skip
    if digest.hexdigest() != piece.sha256:
        raise ArchiveError(archive.text, piece.name, "it is corrupt: its SHA-256 is not that in the manifest")  # fmt: skip
    if given != length:
        raise ArchiveError(archive.text, piece.name, f"it has {given} bytes of log, the manifest says {length}")  # fmt: skip


def _unpacker(piece: LogPiece) -> Callable[[bytes], Iterator[bytes]]:
    if piece.compress == "none":
        return lambda data: iter((data,))
    unpacker = zlib.decompressobj()

    def unpack(data: bytes) -> Iterator[bytes]:
        while data:
            part = unpacker.decompress(data, _UNPACKED_BYTES)
            if part:
                yield part
            data = unpacker.unconsumed_tail
            if not part and not data:
                return

    return unpack


def _remove_tree(files: Files, folder: Path) -> None:
    if not files.is_folder(folder):
        return
    for entry in files.entries(folder):
        if entry.is_folder:
            _remove_tree(files, entry.path)
        else:
            files.remove(entry.path)
    files.remove_folder(folder)
