"""Opens the store at a path: configuration, lock, recovery, and the construction of all components.

The order of opening for writing: lock; finish the swap of a repair or reindex that was killed during its swap;
inspect everything and decide; only then make changes, the abort marker first, so that the next open detects a
crash during this one.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import attrs

from penstock._kernel import RecordEncoder
from penstock.config import sources
from penstock.config.model import Config, Profile
from penstock.config.sources import build_config, plugin_lists
from penstock.contracts import (
    CheckBacks,
    Context,
    Dispatcher,
    Extension,
    QueueIndex,
    RetentionPolicy,
    SpawnWorker,
    WorkWakes,
)
from penstock.contracts.base import Geometry
from penstock.contracts.foreign import Foreign
from penstock.dispatch.rebuild import (
    RebuildJournal,
    Recipe,
    open_log,
    read_deleted_topics,
)
from penstock.dispatch.tail_follower import TailFollower, pick_indexes
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.progress import Checkpoint
from penstock.durability.replica_file import check_role, note_unclean_opening
from penstock.durability.side_folder import RemovedTopicsFile, SideFolder, note_lock, visible_offset
from penstock.durability.written_ranges import watch_coverage
from penstock.errors import (
    ArgumentTypeError,
    ConfigError,
    ConflictError,
    PluginError,
    StorageError,
    StoreLockedError,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.lock_file import Lock
from penstock.format import arguments
from penstock.format.arrays import np
from penstock.format.hashes import crc32c
from penstock.integrity.segment_digests import Digests
from penstock.integrity.upkeep import Upkeep
from penstock.integrity.verification import Verification, spread_over
from penstock.log.commit_log import CommitLog, LogTail
from penstock.log.queue_evidence import use_entries
from penstock.log.resync import RecoveredLog
from penstock.log.scan import Checks, scan_window
from penstock.log.segmented_log import SegmentedLog
from penstock.plugins.registry import Registry, load_registry
from penstock.recovery.inspection import OpenState, hide_part_of_batch, inspect_store
from penstock.recovery.log_end import LogEnd, RecoveryReport, check_reached, named_gaps
from penstock.recovery.restore import (
    claim,
    load_all,
    note_deleted_topics,
    note_range,
    repair_log_end,
    sync_names_below,
    sync_names_up,
)
from penstock.recovery.store_layout import (
    check_foreign,
    check_layout,
    find_geometry,
    find_profile,
    foreign_in,
    is_store,
    no_store,
    was_made_here,
)
from penstock.retention.runner import RetentionForecast
from penstock.runtime.clock import JUMP_MS, Clock
from penstock.runtime.waking import Wakes
from penstock.runtime.workers import StopAfterError, WorkerGroup, check_threads
from penstock.store.consumer_offsets import ConsumerOffsets
from penstock.store.copying import begin_copying
from penstock.store.engine import Engine
from penstock.store.lowlevel import LowLevelStore
from penstock.store.queue_cursors import QueueCursors
from penstock.store.requests import RequestDesk
from penstock.store.store import Store, place_of_program
from penstock.write.validation import host_bytes

logger = get_logger(__name__)


def open_store(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    files: Files | None = None,
    clock: Clock | None = None,
    spawn: SpawnWorker | None = None,
    environ: Mapping[str, str] | None = None,
    check_back: CheckBacks | None = None,
    **settings: Any,
) -> Store:
    """Open the store at `path`; creates it if there is none, unless `read_only`.

    Args:
        path: the store's folder, or the store directory of a RocketMQ broker.
        config: a TOML file. Precedence, lowest to highest: this file, environment variables
            (`PENSTOCK_FLUSH__USE`), keyword arguments.
        read_only: change nothing on disk except the bit in `penstock/wake` with which a follower requests
            wake-ups; works while another process writes.
        files: the file system; tests pass one that injects faults.
        clock: the clock; tests pass their own.
        spawn: starts background threads.
        environ: environment variables; None for those of the process.
        check_back: asked about messages that `Store.prepare` stored and nobody finished, for example because their
            process was killed: a function that gets a `contracts.Prepared` and returns "commit", "rollback", or None if
            that is not known yet. Or one function for each group, by name. Called in a thread of the process that
            writes.
        settings: `flush="sync"` picks a strategy. Other settings are given by their dotted name, for example
            `**{"flush.sync.timeout_ms": 1000}`, or as nested mappings.

    Raises:
        ConfigError: a setting is unknown or invalid, or differs from the value the store was created with.
        StoreLockedError: another process has the store open for writing.
        NotAStoreError, StrayFileError, CorruptionError: the content of the folder cannot be opened; nothing
            was changed.
    """
    call = "open"
    root = arguments.folder(call, "path", path)
    read_only = arguments.flag(call, "read_only", read_only)
    opener = make_opener(
        root, config, files, clock, spawn, environ, settings, call=call,
        names=("config", "read_only", "files", "clock", "spawn", "environ", "check_back"),
    )  # fmt: skip
    if check_back is not None:
        opener.take_callback("check_back", check_back)
    return opener.open_for_reading() if read_only else opener.open_for_writing()


def open_several(
    config: str | os.PathLike[str] | None = None,
    *,
    files: Files | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> Callable[[str | os.PathLike[str]], Store]:
    """Return a function that opens a store read-only, given its path; the arguments are those of `open`.

    Plugins are searched for once, which takes longer than opening a store: it matters for a data set of a thousand
    stores. The function uses a `Path` unchanged, and resolves anything else as a path on this machine.
    """
    call = "open_several"
    made = make_opener(
        ".", config, files, None, None, environ, settings, call=call, names=("config", "files", "environ")
    )  # fmt: skip

    def open_one(path: str | os.PathLike[str]) -> Store:
        root = arguments.folder("open", "path", path)
        if not isinstance(path, Path):
            root = root.absolute()
        opener = Opener(root, made.asked, made.registry, made.files, made.clock, None)
        return opener.open_for_reading()

    return open_one


def make_opener(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None,
    files: Files | None,
    clock: Clock | None,
    spawn: SpawnWorker | None,
    environ: Mapping[str, str] | None,
    settings: Mapping[str, Any],
    *,
    call: str = "open",
    names: Sequence[str] = (),
) -> "Opener":
    """Return an opener for the store at `path`; the arguments are those of `open_store`.

    `call` and `names` are the name of the public function and of its arguments, for its messages.
    """
    if files is not None:
        arguments.with_methods(call, "files", files, ("open", "lock"), "a file system, as `Files`")  # fmt: skip
    if clock is not None:
        arguments.with_methods(call, "clock", clock, ("time_ms", "monotonic_ms"), "a clock, as `Clock`")  # fmt: skip
    if spawn is not None:
        arguments.function(call, "spawn", spawn)
    if environ is not None:
        arguments.mapping(call, "environ", environ)
    given = sources.gather(
        arguments.folder(call, "config", config) if config is not None else None,
        os.environ if environ is None else environ,
        settings,
    )
    for key, (value, origin) in given.items():
        logger.debug("%s: setting %s is %r, from %s", path, key, value, origin)
    plugins = plugin_lists(given)
    registry = load_registry(plugins.block, plugins.require)
    built = build_config(given, registry, names)
    files = files or Files(built.files.mode)
    return Opener(Path(path).absolute(), built, registry, files, clock or Clock(), spawn)


def _import_for_threads() -> None:
    """Import what background threads need: later, there may be no descriptor left for an import."""
    np.zeros(0)
    crc32c(b"")


class Opener:
    """Opens one store once.

    Attributes:
        asked: the configuration as given, which may be used for other stores too.
        follows: the store is opened to append the bytes of another log, and takes nothing else.
    """

    follows: ClassVar[bool] = False

    def __init__(
        self,
        root: Path,
        asked: Config,
        registry: Registry,
        files: Files,
        clock: Clock,
        spawn: SpawnWorker | None,
    ) -> None:
        # The user may have put the store on another disk. Links within a store are refused.
        self.root = files.followed(root)
        self.asked = asked
        self.registry = registry
        self.files = files
        files.anchor(self.root)
        self.clock = clock
        plugins = asked.plugins
        self._worker_group = WorkerGroup(
            self._worker_failed, slow_ms=plugins.slow_ms, limit_ms=plugins.close_limit_ms
        )
        self._given_spawn = spawn
        self._functions: dict[str, Any] = {}
        self._engine: Engine | None = None
        self._built: Store | None = None
        self._removed_topics = RemovedTopicsFile(files, self.root)
        # None for a caller that brings its own disk or threads: a test, which may drop a store as a kill does.
        own = spawn is None and type(files) is Files
        self._opened_at = place_of_program() if own else None

    @cached_property
    def profile(self) -> Profile:
        """The profile whose defaults apply to this store."""
        return find_profile(self.files, self.root, self.asked.profile)

    @cached_property
    def config(self) -> Config:
        """The configuration that applies to this store; determined once, before the store is created."""
        return self.asked.for_store(self.profile)

    def geometry(self) -> Geometry:
        """Return the store's sizes; raises `GeometryError` if the configuration requests other ones."""
        asked = attrs.asdict(self.asked.geometry)
        return find_geometry(self.files, self.root, asked, self.profile.geometry)

    def check_strategies(self) -> None:
        """Raise if no plugin offers a configured strategy, or if the configured strategies conflict."""
        config = self.config
        picks = config.picks()
        chosen = [
            (kind, self.registry.sets()[kind].get(name))
            for kind, names in picks.items()
            for name in names
        ]
        queue_indexes = sum(issubclass(cls, QueueIndex) for _, cls in chosen)
        if queue_indexes != 1:
            raise ConfigError(
                f"index.use is {config.index.use}: exactly one of its dispatchers must be a queue "
                f"index, but {queue_indexes} are. Nothing was opened; correct index.use: `penstock plugins` lists them"
            )
        for kind, cls in chosen:
            reason = cls.conflict(picks)
            if reason is not None:
                raise ConflictError(kind, cls.name, reason)

    def warn_of_idle_policies(self) -> None:
        """Log a warning for each option of a retention policy that is set although the policy is not used."""
        names = self.config.picks()["retention"]
        for key in self.asked.origins:
            kind, *rest = key.split(".")
            if kind == "retention" and len(rest) > 1 and rest[0] not in names:
                logger.warning(
                    "%s is set, but retention.use is %s: that policy deletes nothing from %s; add %r to retention.use",
                    key, names, self.root, rest[0],
                )  # fmt: skip

    def dispatchers(self, context: Context) -> list[Dispatcher]:
        """Return the configured dispatchers, not yet loaded."""
        return [cls(options, context) for cls, options in self.dispatcher_kinds()]

    def dispatcher_kinds(self) -> tuple[tuple[type[Dispatcher], Any], ...]:
        """Return the classes of the configured dispatchers, each with its options."""
        classes = [self.registry.dispatchers.get(name) for name in self.config.index.use]
        return tuple((cls, self.config.options_for("index", cls)) for cls in classes)

    def policies(self, context: Context) -> list[RetentionPolicy]:
        """Return new instances of the configured retention policies."""
        names = self.config.picks()["retention"]
        classes = [self.registry.retention_policies.get(name) for name in names]
        return [cls(self.config.options_for("retention", cls), context) for cls in classes]

    def extensions(self, context: Context) -> list[Extension]:
        """Return the configured extensions, not yet attached."""
        classes = [self.registry.extensions.get(name) for name in self.config.extensions.use]
        return [
            cls(self.config.options_for("extensions", cls), context, self._functions)
            for cls in classes
        ]

    def take_callback(self, name: str, given: object) -> None:
        """Pass a function of the program, or several by name, to the extensions that list the argument's name."""
        functions = given if isinstance(given, Mapping) else {name: given}
        for each, function in functions.items():
            arguments.text("open", f"a name in {name}", each)
            arguments.function("open", name, function)
            if inspect.iscoroutinefunction(function):
                expected = (
                    "a plain function; this one is a coroutine function, and nothing would await it"
                )
                raise ArgumentTypeError("open", name, function, expected)
        used = self.config.extensions.use
        if not any(name in self.registry.extensions.get(each).callbacks for each in used):
            raise ConfigError(
                f"{name} is refused: no extension in extensions.use takes it; "
                "add one that does: `penstock plugins` lists them"
            )
        self._functions[name] = dict(given) if isinstance(given, Mapping) else given

    def _spawn(
        self, name: str, step: Callable[[], float | None], wakes: WorkWakes | None = None
    ) -> Any:
        if self._given_spawn is not None:
            return self._given_spawn(name, StopAfterError(name, step, self._worker_failed), wakes)
        return self._worker_group(name, step, wakes)

    def _worker_failed(self, name: str, error: BaseException) -> None:
        logger.error(
            "background thread %s failed; the store takes no more writes", name, exc_info=error
        )
        if self._engine is not None:
            self._engine.flusher.fail(f"background thread {name} failed: {error!r}")

    def _announce_failure(self, reason: str) -> None:
        if self._engine is not None and self._engine.copying is not None:
            self._engine.copying.fail(reason)
        self.registry.fire("penstock_store_failed", root=str(self.root), reason=reason)

    def context(self, geometry: Geometry, log: SegmentedLog, *, read_only: bool) -> Context:
        """Return the context that is passed to the strategies."""
        return Context(
            root=self.root,
            files=self.files,
            clock=self.clock,
            geometry=geometry,
            spawn=self._spawn,
            read_only=read_only,
            log_min_offset=log.present_min_offset if read_only else lambda: log.min_offset,
            appenders_wait=self.registry.flush_policies.get(self.config.flush.use).waits,
            read_history=lambda: read_deleted_topics(self.files, self.root),
            removed_before=lambda topic: self._removed_topics.read().before_of(topic),
        )

    def foreign(self, geometry: Geometry) -> tuple[Foreign, ...]:
        """Return the files in the store's folder that Penstock does not understand."""
        log = open_log(self.files, self.root, geometry)
        context = self.context(geometry, log, read_only=True)
        # Only those that implement `not_understood`: the constructors of others may open files.
        made = [
            cls(options, context)
            for cls, options in self.dispatcher_kinds()
            if cls.not_understood is not Dispatcher.not_understood
        ]
        try:
            return foreign_in(self.files, self.root, log, made)
        finally:
            log.close()
            for dispatcher in made:
                dispatcher.close()

    def _make_forecast(self, context: Context, log: SegmentedLog) -> RetentionForecast:
        # New instances of the policies: those in use may keep state between votes.
        return RetentionForecast(
            log, lambda: self.policies(context), self.files, self.clock.time_ms,
            interval_ms=self.config.retention.interval_ms, is_foreign=context.read_only,
        )  # fmt: skip

    def _verification(
        self,
        log: SegmentedLog,
        dispatchers: list[Dispatcher],
        geometry: Geometry,
        end: Callable[[], int] | None,
    ) -> Verification:
        spread = spread_over(self.files, Recipe(self.root, geometry, self.dispatcher_kinds()))
        return Verification(self.files, self.root, log, dispatchers, end=end, spread=spread)

    # --- reading

    def open_for_reading(self) -> Store:
        """Open read-only: takes no lock and changes nothing."""
        self.check_strategies()
        if not is_store(self.files, self.root):
            raise no_store(self.files, self.root)
        check_layout(self.files, self.root, writes=False)
        geometry = self.geometry()
        log = open_log(self.files, self.root, geometry)
        context = self.context(geometry, log, read_only=True)
        dispatchers = self.dispatchers(context)
        watch_coverage(self.files, self.root, log)
        use_entries(log, dispatchers)
        hide_part_of_batch(context, log, dispatchers)
        offsets = ConsumerOffsets(self.files, self.root, read_only=True)
        logger.info(
            "%s: opened read-only; %d segments of %d bytes from log offset %d on, index %s",
            self.root, len(log.segments), geometry.segment_bytes, log.min_offset, ", ".join(self.config.index.use),
        )  # fmt: skip
        store = Store(
            self.root, log, dispatchers, engine=None, offsets=offsets,
            removed_topics=self._removed_topics,
            extensions=self.extensions(context),
            published=visible_offset(self.files, self.root),
            wakes=Wakes(self.files, self.root),
            outlook=self._make_forecast(context, log),
            verification=self._verification(log, dispatchers, geometry, None),
            not_understood=self.foreign(geometry),
            opened_at=self._opened_at,
        )  # fmt: skip
        store._attach(LowLevelStore(store, keeps_open=False))
        self._warn_of_unseen(log)
        log.note_gaps()
        return store

    def _warn_of_unseen(self, log: SegmentedLog) -> None:
        """Log that a killed store has records that readers do not see: it had not dispatched them yet."""
        seen = visible_offset(self.files, self.root)()
        if (
            seen is None
            or not self.files.exists(self.root / "abort")
            or self.files.is_locked(self.root / "lock")
        ):
            return
        for segment in log.segments:
            if segment.end_offset > seen:
                start = max(segment.base_offset, seen)
                found = scan_window(
                    log, segment, start, segment.end_offset, Checks(), window_bytes=1 << 16
                )
                if len(found.records):
                    logger.warning(
                        "%s was not closed cleanly, and is opened read-only: records follow log offset %d that readers "
                        "may not see; the next opening for writing brings them into queues and index", self.root, seen,
                    )  # fmt: skip
                    return

    # --- writing

    def open_for_writing(self) -> Store:
        """Take the lock, recover, connect the components, and start background work."""
        if self._given_spawn is None:
            check_threads()
        self.check_strategies()
        self.warn_of_idle_policies()
        _import_for_threads()
        began = self.clock.monotonic_ms()
        is_new = not is_store(self.files, self.root)
        check_layout(self.files, self.root, writes=True)
        geometry = self.geometry()
        self.files.make_folder(self.root)
        if is_new:
            # Also syncs the names of folders that an earlier attempt created and did not sync.
            sync_names_up(self.files, self.root)
        lock = self.lock()
        try:
            store = self._open_locked(lock, geometry, is_new=is_new, began=began)
        except BaseException:
            self._worker_group.end(lock.release) if self._built is None else self._built._give_up()
            raise
        # The store's threads keep this object, which would keep a store that the program has dropped.
        self._built = None
        return store

    def lock(self, call: str = "opening it for writing") -> Lock:
        """Take the store's lock; raises `StoreLockedError` with the holder if another process has it.

        Raises `FollowerError` if the store follows another one: `call` is what is refused.
        """
        self.check_role(call)
        lock = self.files.lock(self.root / "lock")
        if lock is None:
            holder = SideFolder(self.files, self.root).read_holder()
            owner = self.files.lock_owner(self.root / "lock")
            if owner is not None:
                holder = f"process {owner}, which is not Penstock: a RocketMQ broker, or its tools"
            raise StoreLockedError(self.root, holder)
        lock.opened_at = self._opened_at or ""
        try:
            # Again: another process may have followed a master meanwhile.
            self.check_role(call)
        except BaseException:
            lock.release()
            raise
        return lock

    def check_role(self, call: str) -> None:
        """Raise `FollowerError` if the store follows another one; `CorruptionError` if that cannot be read."""
        check_role(self.files, self.root, call)

    def _open_locked(self, lock: Lock, geometry: Geometry, *, is_new: bool, began: int) -> Store:
        """Return the store, recovered and started. From `_built` on it has the lock, and releases it."""
        log = SegmentedLog(self.files, self.root / "commitlog", geometry.segment_bytes, mapped=True)
        if not is_new:
            check_foreign(self.root, self.foreign(geometry), "opening for writing is refused")
            RebuildJournal(self.files, self.root).finish()
        found = self._inspect(log, geometry, is_new=is_new)
        note_deleted_topics(self.files, self.root, self._removed_topics)
        context = self.context(geometry, log, read_only=False)
        policies = self.policies(context)  # Before the first change: one may refuse its options.
        if found.was_copied and not found.is_clean:
            found.side_folder.note_lost_end()
        claim(self.files, found, geometry, self.profile)
        assert self.config.log.checksum is not None
        note_range(self.files, found, log, self.config.log.checksum)
        if not is_new:
            found.mended.extend(log.load(repair=True))
        self._warn_of_future(found.least_time_ms)
        digests = Digests(self.files, self.root)
        # Before the log is repaired: bytes that are rewritten change the time of their file.
        found.sealed = digests.sift(log, found.end.offset, is_ours=found.is_still_ours)
        end = repair_log_end(self.files, log, found)
        if found.lost_from is not None:
            note_unclean_opening(self.files, self.root, found.lost_from, is_copy=found.was_copied)
        engine, store = self._build(lock, log, context, end, found, policies)
        self._built = store
        store.recovery = report = self._load_and_replay(engine, log, found, end, began)
        self._engine = engine
        engine.start(self._spawn, is_threaded=self._given_spawn is None)

        def announce() -> None:
            waits = self._given_spawn is None and not self.follows
            engine.attached(engine.extensions if waits else ())
            self.registry.fire("penstock_store_opened", root=str(self.root), report=report)

        store._attach(LowLevelStore(store, keeps_open=False), announce)
        return store

    def _warn_of_future(self, newest_ms: int) -> None:
        ahead_ms = newest_ms - self.clock.time_ms()
        if ahead_ms > JUMP_MS:
            logger.warning(
                "%s: the newest record was stored %.1f hours in the future, by its store time, and new records get the "
                "same time until then, since store times never decrease; retention goes by the times of files. Check "
                "the clock",
                self.root, ahead_ms / 3_600_000,
            )  # fmt: skip

    def _inspect(self, log: SegmentedLog, geometry: Geometry, *, is_new: bool) -> OpenState:
        """Inspect the store before anything changes; queue entries serve as evidence for records."""
        context = self.context(geometry, log, read_only=True)
        # Only the queue index is constructed: the constructors of others may open files.
        (index,) = (
            cls(options, context)
            for cls, options in self.dispatcher_kinds()
            if issubclass(cls, QueueIndex)
        )
        try:
            use_entries(log, [index])
            return inspect_store(self.files, self.root, log, self.config.index.use, is_new=is_new)
        finally:
            log.witness = None
            index.close()

    def _encoder(self, cursors: QueueCursors) -> RecordEncoder:
        log = self.config.log
        return RecordEncoder(
            host_bytes(log.store_host), crc_property=log.checksum == "crc32+record",
            body_bytes_max=log.body_bytes_max, make_cursor=cursors.for_put, make_copy_cursor=cursors.of,
            turns_of=cursors.turns_of, rewrite=cursors.rewrite,
            # The compiled kernel reads the system clock itself.
            time_ms=None if type(self.clock) is Clock else self.clock.time_ms,
        )  # fmt: skip

    def _build(
        self, lock: Lock, log: SegmentedLog, context: Context, end: LogEnd, found: OpenState,
        policies: list[RetentionPolicy],
    ) -> tuple[Engine, Store]:  # fmt: skip
        """Return the engine and the store, connected but not started."""
        config, registry = self.config, self.registry
        writer_cls = registry.writers.get(config.write.use)
        allocator_cls = registry.allocators.get(config.alloc.use)
        flush_cls = registry.flush_policies.get(config.flush.use)
        dispatchers = self.dispatchers(context)
        use_entries(log, dispatchers)
        allocator = allocator_cls(config.options_for("alloc", allocator_cls), context)
        writer = writer_cls(config.options_for("write", writer_cls), context)
        index, extensions = pick_indexes(dispatchers)[0], self.extensions(context)
        offsets = ConsumerOffsets(self.files, self.root, read_only=self.follows)
        long_topics = config.log.long_topics or was_made_here(self.files, self.root)
        cursors = QueueCursors(index, offsets, extensions, long_topics)
        commit_log = CommitLog(
            log, LogTail(log, writer, allocator, self.files), self._encoder(cursors), clock=self.clock,
            busy_ms=config.log.busy_ms, record_reserve=max((each.record_reserve for each in extensions), default=0),
        )  # fmt: skip
        commit_log.resume(end.offset, found.least_time_ms, found.synced_time_ms)
        flusher = LogFlusher(
            commit_log, found.progress, end.offset, found.synced_time_ms, on_failed=self._announce_failure,
            waits=flush_cls.waits)  # fmt: skip
        policy = flush_cls(config.options_for("flush", flush_cls), context, flusher)
        engine = Engine(
            root=self.root, files=self.files, clock=self.clock, log=commit_log, flusher=flusher,
            policy=policy, dispatchers=dispatchers, policies=policies,
            follower=TailFollower(commit_log, flusher, dispatchers, self.clock.monotonic_ms),
            queue_index=index, checkpoint=Checkpoint(self.files, self.root), progress=found.progress,
            side_folder=found.side_folder, lock=lock, offsets=offsets, cursors=cursors, extensions=extensions,
            worker_group=self._worker_group, fire=registry.fire, ask=functools.partial(registry.ask, config=config),
            upkeep=Upkeep.of(self.files, self.root, log, flusher, registry.fire, config.scrub, found.sealed),
            copying=None if self.follows else begin_copying(config, registry.replicators, context, log, flusher, index),
            config=config, wakes=Wakes(self.files, self.root, writes=True), removed_topics=self._removed_topics,
        )  # fmt: skip
        return engine, Store(
            self.root, log, dispatchers, engine=engine, offsets=offsets, wakes=engine.wakes,
            removed_topics=engine.removed_topics,
            extensions=[] if self.follows else [*engine.extensions, RequestDesk(context, engine.wakes)],
            outlook=self._make_forecast(context, log),
            verification=self._verification(
                log, dispatchers, context.geometry, engine.dispatched_offset
            ), opened_at=self._opened_at,
        )  # fmt: skip

    def _load_and_replay(
        self, engine: Engine, log: SegmentedLog, found: OpenState, end: LogEnd, began: int
    ) -> RecoveryReport:
        """Load the dispatchers, replay the records they are missing, and write progress file and checkpoint."""
        found.mended.extend(engine.removed_topics.repair(end.offset))
        history = read_deleted_topics(self.files, self.root, found.ranges)
        # Less than the end only in a follower, whose log may end within an atomic batch.
        seen = attrs.evolve(end, offset=engine.flusher.visible_offset)
        with named_gaps(log):
            load_all(engine.dispatchers, RecoveredLog(log, seen.offset), found, seen, history)
            start = min(engine.follower.progress, seen.offset)
            engine.follower.catch_up()
        for name, trouble in engine.follower.troubles.items():
            if isinstance(trouble.error, PluginError):
                raise trouble.error
            raise StorageError(
                f"dispatcher {name} of {self.root} could not process the log up to its end: {trouble.error!r}; the "
                f"log is not affected, and the store is not opened for writing"
            ) from trouble.error
        check_reached(log, engine.follower.progress, seen)
        engine.log.checks_crc = False
        removed = engine.removed_topics.read().topics
        found.mended.extend(engine.offsets.set_back(engine.queue_index, removed))
        state = found.progress.state
        state.flushed_offset, state.failed = end.offset, False
        state.last_time_ms = found.least_time_ms
        note_lock(state, self.files, self.root)
        engine.checkpoints.write()
        if not found.is_clean:
            # The other slot, too: it may be from before a cut. And which names the last writer had synced is not known.
            engine.checkpoints.write(again=True)
            sync_names_below(self.files, self.root)
        for sentence in found.mended:
            logger.warning("%s: %s", self.root, sentence)
        duration_ms = self.clock.monotonic_ms() - began
        logger.info(
            "%s: opened for writing in %d ms; it was %s, its log ends at %d; %d bytes were cut off, records from log "
            "offset %d on were dispatched again",
            self.root, duration_ms, found.kind, end.offset, end.dirty_bytes, start,
        )  # fmt: skip
        return RecoveryReport(
            state=found.kind, log_end=end.offset, cut_bytes=end.dirty_bytes, reason=end.reason,
            saved_to=found.saved_to, rewritten_bytes=found.rewritten, dispatched_from=start,
            mended=tuple(found.mended), duration_ms=duration_ms, newest_time_ms=found.least_time_ms,
        )  # fmt: skip
