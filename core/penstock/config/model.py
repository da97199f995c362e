"""The sections of the configuration: frozen classes with defaults, some of the store's profile. See `sources`.

It is read once and passed down; nothing reads a file or the environment later.

Profiles depend on who created the store. Two can be requested by name; the others apply to existing stores. When
Penstock creates a store, or opens another program's store for writing, it records the profile in
`penstock/geometry.json`, so that the store keeps these defaults permanently.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from penstock.contracts import MS_MAX, NO_REPLICATOR, Strategy, limits
from penstock.contracts.base import ROCKETMQ, Geometry
from penstock.files import FILE_MODE


@attrs.frozen(kw_only=True)
class Profile:
    """Defaults of one kind of store.

    Attributes:
        name: the name that is recorded in the store.
        geometry: file sizes, used if neither the configuration nor the store's files determine them.
        checksum: the default of `log.checksum`.
        retention: the default of `retention.use`.
        options: defaults of strategies' options, by dotted key, where they are not the strategies' own.
    """

    name: str
    geometry: Geometry
    checksum: str
    retention: tuple[str, ...]
    options: Mapping[str, object] = {}


EMBEDDED = Profile(name="embedded", geometry=Geometry(), checksum="crc32+record", retention=())
JAVA = Profile(
    name="rocketmq",
    geometry=ROCKETMQ,
    checksum="crc32",
    retention=("age",),
    options={"flush.async.least_pages": 4, "flush.async.thorough_interval_ms": 10_000},
)
# A directory that another program created. Nobody has told Penstock to delete anything from it.
BROKER = Profile(name="broker", geometry=ROCKETMQ, checksum="crc32", retention=())

# The profiles that may be requested, and all that a store may have recorded.
PROFILES = {profile.name: profile for profile in (EMBEDDED, JAVA)}
KNOWN = {profile.name: profile for profile in (EMBEDDED, JAVA, BROKER)}


_MODE_MAX = 0o666
# A record must fit into a segment, and the largest segment has 1 GiB.
BODY_BYTES_MAX = 1 << 30
_MIB_PER_S_MAX = 1 << 30
CHECKSUMS = ("crc32", "crc32+record")


@attrs.frozen(kw_only=True)
class GeometryConfig:
    """File sizes. None takes a size from the store's files, or for a new store from the profile.

    Attributes:
        segment_bytes: size of a commit-log file.
        queue_entries: entries in one consume-queue file.
        index_slots: hash slots of an index file.
        index_entries: entries of an index file.
    """

    segment_bytes: int | None = None
    queue_entries: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None


@attrs.frozen(kw_only=True)
class LogConfig:
    """The commit log.

    Attributes:
        checksum: "crc32" covers bodies, as RocketMQ does; "crc32+record" adds a CRC over each whole record (20 bytes
            and about 0.3 us a message), which RocketMQ 5.2 and later check. None is the default of the store's profile.
        body_bytes_max: the maximum size of a message body in bytes.
        store_host: address and port written into records and message ids.
        long_topics: accept topics of over 127 bytes in a directory that a broker created. Brokers before 5.0 do not
            know the version of such records, and end their log at the first one. Penstock's own stores
            always accept them.
        busy_ms: when one append holds the append lock for longer than this, waiting appends raise `BusyError`.
    """

    checksum: str | None = None
    body_bytes_max: int = attrs.field(default=4 << 20, validator=limits(0, BODY_BYTES_MAX))
    store_host: str = "127.0.0.1:10911"
    long_topics: bool = False
    busy_ms: int = attrs.field(default=1000, validator=limits(0, MS_MAX))


def _check_mode(_instance: object, _field: object, mode: int | None) -> None:
    if mode is not None and (~mode & FILE_MODE or mode & ~_MODE_MAX):
        raise ValueError(
            f"mode is {mode:#o}; it must allow the owner to read and write, and must not include execute bits"
        )


@attrs.frozen(kw_only=True)
class FilesConfig:
    """The files of the store.

    Attributes:
        mode: permissions of new files, such as 0o640; a user who may read the files may enter the folders. None
            is 0o600 for files and 0o700 for folders, less what the umask removes.
    """

    mode: int | None = attrs.field(default=None, validator=_check_mode)


@attrs.frozen(kw_only=True)
class WriteConfig:
    """How bytes reach a file: the name of a segment writer."""

    use: str = "mmap"


@attrs.frozen(kw_only=True)
class AllocConfig:
    """How files are made: the name of an allocator."""

    use: str = "on-demand"


@attrs.frozen(kw_only=True)
class FlushConfig:
    """When bytes are durable: the name of a flush policy."""

    use: str = "async"


@attrs.frozen(kw_only=True)
class IndexConfig:
    """The files that are derived from the log: queues and index.

    Attributes:
        use: dispatchers, in the order in which they get records; exactly one must be a queue index.
        follow_interval_ms: pause of the tail follower between two batches; a shorter pause shows messages
            to other processes sooner and costs the writer time.
        flush_interval_ms: how often queues and index are synced; a shorter interval shortens recovery.
    """

    use: list[str] = attrs.Factory(lambda: ["consume-queue", "hash-index"])
    follow_interval_ms: int = attrs.field(default=5, validator=limits(0, MS_MAX))
    flush_interval_ms: int = attrs.field(default=1000, validator=limits(1, MS_MAX))


@attrs.frozen(kw_only=True)
class RetentionConfig:
    """Which segments are deleted, and when.

    Attributes:
        use: retention policies; the largest vote counts. An empty list keeps everything; None is the
            default of the store's profile.
        interval_ms: how often the policies vote.
        pause_ms: pause between the deletion of two segments of a run, so that deletions do not overload the disk.
    """

    use: list[str] | None = None
    interval_ms: int = attrs.field(default=10_000, validator=limits(1, MS_MAX))
    pause_ms: int = attrs.field(default=100, validator=limits(0, MS_MAX))


@attrs.frozen(kw_only=True)
class ExtensionsConfig:
    """The extensions of the store.

    Attributes:
        use: extensions, in the order in which they are asked. An empty list leaves only the store itself: no consumers,
            and no configuration of topics.
    """

    use: list[str] = attrs.Factory(lambda: ["messaging"])


@attrs.frozen(kw_only=True)
class ReplicateConfig:
    """Copies of the log while it is written: the name of a replicator, or "none"."""

    use: str = NO_REPLICATOR


@attrs.frozen(kw_only=True)
class ScrubConfig:
    """Background checks of full segments, in a store that is open for writing.

    Attributes:
        digests: keep a digest of each full segment; `False` turns scrubbing off as well.
        seal_mib_per_s: how fast a segment that became full is read for its digest.
        mib_per_s: how fast sealed segments are read again; a higher rate finds corruption sooner, a lower rate
            leaves the disk to others.
        interval_hours: pause before each pass over all sealed segments; 0 disables these passes.
    """

    digests: bool = True
    seal_mib_per_s: int = attrs.field(default=256, validator=limits(1, _MIB_PER_S_MAX))
    mib_per_s: int = attrs.field(default=8, validator=limits(1, _MIB_PER_S_MAX))
    interval_hours: float = attrs.field(default=24.0, validator=limits(0, MS_MAX / 3_600_000))


@attrs.frozen(kw_only=True)
class PluginsConfig:
    """Which plugins to load.

    Attributes:
        block: entry points that are not loaded.
        require: entry points without which the store does not open.
        slow_ms: a step of background work that takes longer is reported in a warning, with its source line.
        close_limit_ms: how long close waits for background work that does not return.
    """

    block: list[str] = attrs.Factory(list)
    require: list[str] = attrs.Factory(list)
    slow_ms: int = attrs.field(default=10_000, validator=limits(1, MS_MAX))
    close_limit_ms: int = attrs.field(default=60_000, validator=limits(1, MS_MAX))


@attrs.frozen(kw_only=True)
class Config:
    """Everything that can be configured, checked.

    A value of None was not given and depends on the store: `for_store` fills it in. `profile` is the requested profile.
    `options` holds each strategy's options by (section, name). `origins` has the source of each given key.
    """

    profile: str | None = None
    geometry: GeometryConfig = GeometryConfig()
    log: LogConfig = LogConfig()
    files: FilesConfig = FilesConfig()
    write: WriteConfig = WriteConfig()
    alloc: AllocConfig = AllocConfig()
    flush: FlushConfig = FlushConfig()
    index: IndexConfig = attrs.Factory(IndexConfig)
    retention: RetentionConfig = attrs.Factory(RetentionConfig)
    extensions: ExtensionsConfig = attrs.Factory(ExtensionsConfig)
    replicate: ReplicateConfig = ReplicateConfig()
    scrub: ScrubConfig = ScrubConfig()
    plugins: PluginsConfig = attrs.Factory(PluginsConfig)
    options: Mapping[tuple[str, str], Any] = attrs.Factory(dict)
    origins: Mapping[str, str] = attrs.Factory(dict)

    def for_store(self, profile: Profile, geometry: Geometry | None = None) -> "Config":
        """Return the configuration with None replaced by these defaults, and by the store's file sizes if given."""
        found: dict[str, dict[str, Any]] = {
            "log": {"checksum": profile.checksum},
            "retention": {"use": list(profile.retention)},
            "geometry": attrs.asdict(geometry) if geometry else {},
        }
        changes: dict[str, Any] = {}
        origins = dict(self.origins)
        for name, values in found.items():
            section = getattr(self, name)
            lacking = {key: v for key, v in values.items() if getattr(section, key) is None}
            changes[name] = attrs.evolve(section, **lacking)
            origins.update({f"{name}.{key}": f"profile {profile.name}" for key in lacking})
        options = dict(self.options)
        for key, value in profile.options.items():
            kind, strategy, name = key.split(".")
            given: Any = options.get((kind, strategy))
            if hasattr(given, name) and key not in origins:
                options[kind, strategy] = attrs.evolve(given, **{name: value})
                origins[key] = f"profile {profile.name}"
        return attrs.evolve(self, profile=profile.name, origins=origins, options=options, **changes)

    def for_new_store(self) -> "Config":
        """Return the complete configuration of a new store."""
        profile = PROFILES[self.profile or EMBEDDED.name]
        return self.for_store(profile, profile.geometry)

    def picks(self) -> dict[str, list[str]]:
        """Return the names of the configured strategies by section."""
        one = (("write", self.write), ("alloc", self.alloc), ("flush", self.flush))
        return {kind: [section.use] for kind, section in one} | {
            "index": self.index.use,
            "retention": self.retention.use or [],
            "extensions": self.extensions.use,
            "replicate": [self.replicate.use] if self.replicate.use != NO_REPLICATOR else [],
        }

    def options_for(self, kind: str, strategy: type[Strategy]) -> Any:
        """Return the configured options of a strategy, or its defaults."""
        found = self.options.get((kind, strategy.name))
        return strategy.Options() if found is None else found

    def items(self) -> Iterator[tuple[str, Any, str]]:
        """Return (dotted key, value, origin) of every setting, including strategies' options."""
        yield "profile", self.profile, self.origins.get("profile", "default")
        for name, section in SECTIONS.items():
            for field in attrs.fields(section):
                key, value = f"{name}.{field.name}", getattr(getattr(self, name), field.name)
                yield key, value, self.origins.get(key, "default")
        for (kind, strategy), options in sorted(self.options.items()):
            for field in attrs.fields(type(options)):
                key = f"{kind}.{strategy}.{field.name}"
                yield key, getattr(options, field.name), self.origins.get(key, "default")


SECTIONS: dict[str, type] = {
    "geometry": GeometryConfig,
    "log": LogConfig,
    "files": FilesConfig,
    "write": WriteConfig,
    "alloc": AllocConfig,
    "flush": FlushConfig,
    "index": IndexConfig,
    "retention": RetentionConfig,
    "extensions": ExtensionsConfig,
    "replicate": ReplicateConfig,
    "scrub": ScrubConfig,
    "plugins": PluginsConfig,
}
