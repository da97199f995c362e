"""The replicator `ship`: a background thread that ships the log to a folder or a URL, every few seconds."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs

from penstock.contracts import (
    MS_MAX,
    Context,
    CopyOutcome,
    CopyState,
    ReplicatedLog,
    Replicator,
    Stoppable,
    limits,
)
from penstock.errors import ConfigError
from penstock.escape import get_logger
from penstock_replicate.ship.archive import open_archive, without_secrets
from penstock_replicate.ship.identity import identity_of
from penstock_replicate.ship.manifest import COMPRESSIONS
from penstock_replicate.ship.ship_errors import OtherLogError
from penstock_replicate.ship.shipper import ShipLimits, Shipper
from penstock_replicate.ship.uploading import StoppedError

logger = get_logger(__name__)

_BACKOFF_MAX_MS = 60_000
_DOUBLINGS_MAX = 16
_MS_PER_HOUR = 3_600_000
_ROUNDS_LATE = 3


def _check_compress(_instance: object, field: Any, value: object) -> None:
    if value not in COMPRESSIONS:
        raise ValueError(f"{field.name} is {value!r}; it must be one of {', '.join(COMPRESSIONS)}")


@attrs.frozen(kw_only=True)
class ShipOptions:
    """Options of the replicator `ship`.

    Attributes:
        url: a folder outside of the store, or a URL of any kind that fsspec supports, such as `s3://bucket/name`, for which the extra
            `remote` is needed. Credentials come from where the URL's own package looks for them.
        interval_ms: how often what is new is shipped.
        generations: so many of the newest manifests stay complete, with every object that they name.
        retention_hours: segments that the store has deleted, and the versions of the files beside the log, stay in the archive for
            this long; 0 for ever.
        compress: `none`, or `zlib` where the way there is slow and bodies are not compressed already.
        parallel: how many objects are written at the same time; each takes up to 20 MiB of memory at a URL, 1 MiB in a folder.
        close_ms: how long a close may take to ship what is new.
    """

    url: str = ""
    interval_ms: int = attrs.field(default=5000, validator=limits(10, MS_MAX))
    generations: int = attrs.field(default=16, validator=limits(1, 10_000))
    retention_hours: float = attrs.field(default=0.0, validator=limits(0, 24 * 36_525))
    compress: str = attrs.field(default="none", validator=_check_compress)
    parallel: int = attrs.field(default=4, validator=limits(1, 64))
    close_ms: int = attrs.field(default=10_000, validator=limits(0, MS_MAX))


class ShipReplicator(Replicator):
    """Ships the log; no put waits for it."""

    name: ClassVar[str] = "ship"
    Options: ClassVar[type] = ShipOptions
    options: ShipOptions

    def __init__(self, options: ShipOptions, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context, log)
        if not options.url:
            raise ConfigError(
                "replicate.ship.url is not set: give a folder outside of the store, or a URL such as s3://bucket/name"
            )
        self.timeout_ms = options.close_ms
        self._shown = without_secrets(options.url)
        self._archive = open_archive(options.url, context.files, root=context.root)
        self._shipper: Shipper | None = None
        self._worker: Stoppable | None = None
        # None until the store closes; then when what is under way is given up.
        self._give_up_ms: int | None = None
        self._is_closed = False
        self._facts = threading.Lock()
        self._failures = 0
        self._rounds = 0
        self._errors = 0
        self._last_error: str | None = None
        self._since_ms = context.clock.time_ms()

    def start(self) -> None:
        """Begin to ship; the archive is read by the background thread, so that a network does not delay an opening."""
        self._shipper = Shipper(
            self.log, self._archive, identity_of(self.context.files, self.context.root),
            files=self.context.files, now_ms=self.context.clock.time_ms, is_stopped=self._is_late,
            limits=ShipLimits(
                generations=self.options.generations, retention_ms=int(self.options.retention_hours * _MS_PER_HOUR),
                compress=self.options.compress, parallel=self.options.parallel,
            ),
        )  # fmt: skip
        self._worker = self.context.spawn("penstock-ship", self._step)

    def _is_late(self) -> bool:
        give_up_ms = self._give_up_ms
        return give_up_ms is not None and self.context.clock.monotonic_ms() >= give_up_ms

    def _step(self) -> float | None:
        """Ship what is new; return the seconds until the next round."""
        if self._is_closed:
            return None
        interval_ms = self.options.interval_ms
        try:
            has_more = self._round()
        except StoppedError:
            return None
        # A failing archive must not stop the store, whatever a file system of fsspec raises.
        except Exception as error:
            self._note(error)
            doubled = interval_ms << min(self._failures - 1, _DOUBLINGS_MAX)
            return max(min(doubled, _BACKOFF_MAX_MS), interval_ms) / 1000
        return 0.0 if has_more else interval_ms / 1000

    def _round(self) -> bool:
        assert self._shipper is not None
        has_more = self._shipper.round()
        with self._facts:
            if self._failures:
                logger.info("%s is shipped to %s again", self.context.root, self._shown)
                self._since_ms = self.context.clock.time_ms()
            self._failures = 0
            self._rounds += 1
        return has_more

    def _note(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        with self._facts:
            self._failures += 1
            self._errors += 1
            is_news = self._failures == 1 or text != self._last_error
            self._last_error = text
            if self._failures == 1:
                self._since_ms = self.context.clock.time_ms()
        if is_news:
            level = logger.error if isinstance(error, OtherLogError) else logger.warning
            level("%s is not shipped: %s; puts are not affected, and it is tried again", self.context.root, text)  # fmt: skip

    def advanced(self, visible_offset: int) -> None:
        """Do nothing: what is new is shipped by the clock."""

    def copied(self, end_offset: int, notify: Callable[[CopyOutcome], None]) -> None:
        """Answer at once: no put waits for an archive."""
        notify(CopyOutcome.NOT_AVAILABLE)

    def copies(self) -> Sequence[CopyState]:
        """Return how far the archive is."""
        manifest = self._shipper.manifest if self._shipper is not None else None
        end = manifest.end if manifest is not None else self.log.min_offset
        lag_bytes = max(self.log.visible_offset - max(end, self.log.min_offset), 0)
        lag_ms = self._lag_ms(end) if lag_bytes else 0
        with self._facts:
            is_working = self._failures == 0 and manifest is not None
            return [
                CopyState(
                    name=self._shown, kind="ship", received_offset=end, flushed_offset=end, lag_bytes=lag_bytes,
                    lag_ms=lag_ms, in_sync=is_working and lag_ms <= _ROUNDS_LATE * self.options.interval_ms,
                    last_error=self._last_error, since_ms=self._since_ms,
                )
            ]  # fmt: skip

    def _lag_ms(self, end: int) -> int:
        try:
            stored_ms = self.log.time_ms_at(max(end, self.log.min_offset))
        except LookupError:
            return 0
        return max(self.context.clock.time_ms() - stored_ms, 0) if stored_ms else 0

    def stats(self) -> dict[str, int]:
        """Return the newest manifest, how far it reaches, and the figures of this process."""
        manifest = self._shipper.manifest if self._shipper is not None else None
        with self._facts:
            return {
                "manifest": manifest.number if manifest else 0,
                "shipped_offset": manifest.end if manifest else 0,
                "shipped_time_ms": manifest.time_ms if manifest else 0,
                "objects": len(manifest.pieces) if manifest else 0,
                "shipped_bytes": self._shipper.shipped_bytes if self._shipper else 0,
                "rounds": self._rounds,
                "errors": self._errors,
            }

    def failed(self, reason: str) -> None:
        """Go on: what is durable is still shipped."""

    def close(self) -> None:
        """Ship what is new, for at most `close_ms`; if the archive failed the last time, ship nothing."""
        if self._is_closed or self._worker is None:
            self._is_closed = True
            return
        self._give_up_ms = self.context.clock.monotonic_ms() + self.options.close_ms
        self._is_closed = True
        self._worker.stop()
        try:
            # Each round ships some objects, or finds nothing new.
            while not self._failures and not self._is_late() and self._round():
                continue
        except StoppedError:
            logger.warning("%s was closed before all of it was shipped to %s; the next opening goes on", self.context.root, self._shown)  # fmt: skip
        except Exception as error:
            self._note(error)
