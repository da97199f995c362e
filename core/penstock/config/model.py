"""The configuration. Sources, by precedence, lowest to highest: defaults, a TOML file, the environment, overrides.

It is read once into frozen classes and passed down; nothing reads a file or the environment later. Every
table is checked, used or not: an unknown key is an error that suggests the nearest known key.
"""

import difflib
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from penstock.config.profiles import EMBEDDED, PROFILES, Profile
from penstock.contracts import Strategy
from penstock.contracts.geometry import Geometry
from penstock.errors import ConfigError
from penstock.files import FILE_MODE
from penstock.plugins.registry import Registry

_MODE_MAX = 0o666
ENVIRONMENT_PREFIX = "PENSTOCK_"
CHECKSUMS = ("crc32", "crc32+record")
FEEDS = ("follow", "direct")
# Section, strategy, option; deeper tables hold no setting.
_DEPTH_MAX = 8


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
        checksum: "crc32" covers bodies, as RocketMQ does; "crc32+record" adds a CRC over each whole
            record (20 bytes and about 0.3 us a message), which RocketMQ 5.2 and later check. None is
            the default of the store's profile.
        body_bytes_max: the maximum size of a message body in bytes.
        store_host: address and port written into records and message ids.
        long_topics: accept topics of over 127 bytes in a directory that a broker created. Brokers before 5.0 do not
            know the version of such records, and end their log at the first one. Stores that Penstock created
            always accept them.
        busy_ms: when one append holds the append lock for longer than this, waiting appends raise `BusyError`.
    """

    checksum: str | None = None
    body_bytes_max: int = 4 << 20
    store_host: str = "127.0.0.1:10911"
    long_topics: bool = False
    busy_ms: int = 1000


def _check_mode(_instance: object, _field: object, mode: int | None) -> None:
    if mode is not None and (~mode & FILE_MODE or mode & ~_MODE_MAX):
        raise ValueError(
            f"mode is {mode:#o}; it must allow the owner to read and write, and must not include execute bits"
        )


@attrs.frozen(kw_only=True)
class FilesConfig:
    """The files of the store.

    Attributes:
        mode: permissions of new files, such as 0o640; whoever may read the files may enter the folders. None
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
        feed: "follow" reads new records from the log; "direct" takes them from the append path.
        follow_interval_ms: pause of the tail follower between two batches; a shorter pause shows messages
            to other processes sooner and costs the writer time.
        flush_interval_ms: how often queues and index are synced; a shorter interval shortens recovery.
    """

    use: list[str] = attrs.Factory(lambda: ["consume-queue", "hash-index"])
    feed: str = "follow"
    follow_interval_ms: int = 5
    flush_interval_ms: int = 1000


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
    interval_ms: int = 10_000
    pause_ms: int = 100


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
    seal_mib_per_s: int = attrs.field(default=256, validator=attrs.validators.ge(1))
    mib_per_s: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    interval_hours: float = attrs.field(default=24.0, validator=attrs.validators.ge(0))


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
    slow_ms: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    close_limit_ms: int = attrs.field(default=60_000, validator=attrs.validators.ge(1))


@attrs.frozen(kw_only=True)
class Config:
    """Everything that can be configured, checked.

    A value of None was not given and depends on the store: `for_store` fills it in. `profile` is the requested
    profile. `options` holds each strategy's options by (section, name). `origins` names the source of each dotted
    key that was given.
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
    scrub: ScrubConfig = ScrubConfig()
    plugins: PluginsConfig = attrs.Factory(PluginsConfig)
    options: Mapping[tuple[str, str], Any] = attrs.Factory(dict)
    origins: Mapping[str, str] = attrs.Factory(dict)

    def for_store(self, profile: Profile, geometry: Geometry | None = None) -> "Config":
        """Return the configuration with None replaced by these defaults, and by the store's file sizes if they are given."""
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
        return attrs.evolve(self, profile=profile.name, origins=origins, **changes)

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
    "scrub": ScrubConfig,
    "plugins": PluginsConfig,
}
# Keywords of `penstock.open` that take a strategy's name as the section's `use`.
_SHORTCUTS = ("write", "alloc", "flush", "index", "retention")

Given = dict[str, tuple[Any, str]]


def gather(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Given:
    """Return (value, origin) by dotted key from all sources; precedence, lowest to highest: file, environment, overrides."""
    given: Given = {}
    if path is not None:
        given.update(_from_file(path))
    given.update(_from_environment(environ))
    for key, value in overrides.items():
        if value is None:
            continue
        if key in _SHORTCUTS and not isinstance(value, Mapping):
            given[f"{key}.use"] = (value, "call")
        else:
            given.update(_flatten(key, value, "call"))
    return given


def _from_file(path: Path) -> Given:
    """Return the settings of a TOML file; raises `ConfigError` if it is missing or not valid TOML."""
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no configuration file {path}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    given: Given = {}
    for key, value in tree.items():
        given.update(_flatten(key, value, str(path)))
    return given


def _flatten(key: str, value: object, origin: str, depth: int = 1) -> Given:
    if not isinstance(value, Mapping):
        return {key: (value, origin)}
    if depth > _DEPTH_MAX:
        raise ConfigError(f"there is no setting {key} ({origin}): it is nested too deeply")
    given: Given = {}
    for name, inner in value.items():
        given.update(_flatten(f"{key}.{name}", inner, origin, depth + 1))
    return given


def _from_environment(environ: Mapping[str, str]) -> Given:
    given: Given = {}
    for name, text in environ.items():
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            parts = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            # A strategy's name is the middle part, and in kebab-case.
            parts[1:-1] = [part.replace("_", "-") for part in parts[1:-1]]
            given[".".join(parts)] = (parse_value(text), f"environment variable {name}")
    return given


def parse_value(text: str) -> Any:
    """Return a value written in TOML; anything that is not a TOML value is taken as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def plugin_lists(given: Given) -> PluginsConfig:
    """Return the section `plugins`, which is needed before the other sections can be checked."""
    found: PluginsConfig = _fill(PluginsConfig, "plugins", given, {})
    return found


def build(given: Given, registry: Registry) -> Config:
    """Return the checked configuration."""
    origins = {key: origin for key, (_, origin) in given.items()}
    _check_keys(given, registry)
    sections = {name: _fill(section, name, given, origins) for name, section in SECTIONS.items()}
    profile, origin = given.get("profile", (None, "default"))
    if profile is not None and (not isinstance(profile, str) or profile not in PROFILES):
        raise ConfigError(
            f"profile is {profile!r} ({origin}); it must be one of: {', '.join(PROFILES)}"
        )
    if sections["log"].checksum is not None:
        _check_word("log.checksum", sections["log"].checksum, CHECKSUMS)
    _check_word("index.feed", sections["index"].feed, FEEDS)
    options = {}
    for kind, strategies in registry.sets().items():
        for name in strategies.names():
            options[kind, name] = _fill(
                strategies.get(name).Options, f"{kind}.{name}", given, origins
            )
    return Config(profile=profile, **sections, options=options, origins=origins)


def _check_word(key: str, value: str, words: Sequence[str]) -> None:
    if value not in words:
        raise ConfigError(f"{key} is {value!r}; it must be one of: {', '.join(words)}")


def _check_keys(given: Given, registry: Registry) -> None:
    """Raise `ConfigError` for a key that no section and no strategy has; it suggests the nearest known key."""
    known = {"profile"}
    for name, section in SECTIONS.items():
        known.update(f"{name}.{field.name}" for field in attrs.fields(section))
    for kind, strategies in registry.sets().items():
        for name in strategies.names():
            fields = attrs.fields(strategies.get(name).Options)
            known.update(f"{kind}.{name}.{field.name}" for field in fields)
    for key, (_, origin) in given.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; sections: {', '.join(SECTIONS)}"
            raise ConfigError(f"there is no setting {key} ({origin}){hint}")


def _fill(cls: type, prefix: str, given: Given, origins: Mapping[str, str]) -> Any:
    """Return an instance of a section's class with the given values, checked; raises `ConfigError`."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in attrs.fields(cls):
        key = f"{prefix}.{field.name}"
        if key in given:
            value, origin = given[key]
            values[field.name] = _convert(key, value, hints[field.name], origin)
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{prefix}: {error}") from error


def _convert(key: str, value: object, hint: Any, origin: str) -> object:
    """Return a value as the type of its field; raises `ConfigError` if it has another type."""
    if isinstance(hint, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return value if value is None else _convert(key, value, kinds[0], origin)
    if typing.get_origin(hint) is list:
        if isinstance(value, str):
            value = [value] if value else []
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return list(value)
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{key} is {value!r} ({origin}); it must be of type {expected}")
