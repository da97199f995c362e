"""The source's options, with Kafka's names where Kafka has an equivalent. This module does not import pyspark.

Spark passes keys in lower case and values as text. A misspelt option is refused with a suggestion. An option of the
sink is refused with an error that names the sink. Spark's own options are ignored.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import attrs

from penstock.errors import ConfigError
from penstock.format.names import is_waiting
from penstock.format.properties import TRIMMED
from penstock_spark.option_parser import (
    GivenOptions,
    Parser,
    declared,
    json_of,
    option,
    optional,
    plain,
    size_of,
    time_of,
    truth,
    whole,
    words,
)
from penstock_spark.sink.options import SinkOptions

EARLIEST, LATEST = -2, -1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of the calendar.
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
NUMBER_MAX = (1 << 63) - 1
_ROWS_MAX = 65_536
_PARTITIONS_MAX = 1_000_000
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Given(NamedTuple):
    """An offset or a time of one queue, and in which generation of its topic; None for whichever there is."""

    number: int
    generation: int | None


# Topic to queue to a number, for each store.
PerStore = dict[str, dict[str, dict[int, Given]]]


# --- where to start and where to end: offsets or times, for all queues or for each


@attrs.frozen(kw_only=True)
class Bound:
    """Where to start, or where to end. At most one of these is more than the default.

    Attributes:
        name: the option that gave it.
        word: EARLIEST or LATEST, for all queues that are not named otherwise.
        numbers: store to topic to queue to offset (-2 earliest, -1 latest), or to Unix milliseconds; the store is ""
            if there is only one.
        are_times: whether `numbers` are times.
        time_ms: one time for all queues.
    """

    name: str
    word: int
    numbers: PerStore = attrs.Factory(dict)
    are_times: bool = False
    time_ms: int | None = None

    def has(self, word: int) -> bool:
        """Return whether any queue starts or ends at this word."""
        if self.are_times or self.time_ms is not None:
            return False
        topics = (topics for store in self.numbers.values() for topics in store.values())
        given = (each for queues in topics for each in queues.values())
        return self.word == word or any(each.number == word for each in given)


def one_time(word: int) -> Parser[Bound]:
    """Return a parser of one time for all queues, in Unix milliseconds."""

    def parse(name: str, text: str) -> Bound:
        return Bound(name=name, word=word, time_ms=whole(0, NUMBER_MAX)(name, text))

    return parse


def one_moment(word: int) -> Parser[Bound]:
    """Return a parser of one time for all queues, as the command line takes it; an end includes it."""

    def parse(name: str, text: str) -> Bound:
        time_ms = time_of(up=word == EARLIEST)(name, text)
        if not _FIRST_MS <= time_ms <= _LAST_MS:
            raise ConfigError(f"{name} is {text!r}, which is not in the years 1 to 9999")
        return Bound(name=name, word=word, time_ms=time_ms + (word == LATEST))

    return parse


def times(word: int) -> Parser[Bound]:
    """Return a parser of a time for each queue, as JSON; `word` applies to queues that are not named."""

    def parse(name: str, text: str) -> Bound:
        return Bound(name=name, word=word, numbers=_numbers(name, text, 0), are_times=True)

    return parse


def offsets(word: int) -> Parser[Bound]:
    """Return a parser of `earliest`, `latest` or offsets as JSON; `word` applies to queues that are not named."""

    def parse(name: str, text: str) -> Bound:
        said = _WORDS.get(text.strip().lower())
        if said is not None:
            return Bound(name=name, word=said)
        return Bound(name=name, word=word, numbers=_numbers(name, text, EARLIEST))

    return parse


def _numbers(name: str, text: str, least: int) -> PerStore:
    """Return `{"topic":{"0":5}}` under the store "", and `{"store":{"topic":{"0":5}}}` unchanged."""
    example = '{"topic":{"0":23,"1":-2}}' if least < 0 else '{"topic":{"0":1760000000000}}'
    found = json_of(name, text, example)
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is {text!r}; it must be JSON like {example}")
    is_nested = any(
        isinstance(inner, dict) and any(isinstance(most, dict) for most in inner.values())
        for inner in found.values()
    )
    stores = found if is_nested else {"": found}
    try:
        return {
            store: {topic: _queues(queues, least) for topic, queues in topics.items()}
            for store, topics in stores.items()
        }
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{name} is {text!r}; it must be JSON like {example} ({error})"
        ) from error


def _queues(given: Mapping[str, object], least: int) -> dict[int, Given]:
    """Return the numbers by queue; a checkpoint names the generation of a topic, too, as `"0@1"`."""
    queues: dict[int, Given] = {}
    for text, value in given.items():
        found = re.fullmatch(r"([0-9]{1,9})(?:@([0-9]{1,18}))?", text)
        if found is None:
            raise ValueError(f"{text!r} is not a queue number")
        queue, generation = int(found[1]), int(found[2]) if found[2] else None
        if queue in queues:
            raise ValueError(f"queue {queue} is named twice")
        queues[queue] = Given(_number(value, least), generation)
    return queues


def _number(value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= NUMBER_MAX:
        of_it = "; -2 is earliest, -1 latest" if least < 0 else ""
        raise ValueError(f"{value!r} is not a whole number from {least} on{of_it}")
    return value


# --- parsers


def _paths(name: str, text: str) -> tuple[str, ...]:
    listed = json_of(name, text, '["data/one", "data/two"]')
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        raise ConfigError(f"{name} is {text!r}; it must be a JSON list of folders")
    return tuple(listed)


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = words(name, text)
    if not topics:
        raise ConfigError(f"{name} names no topic; omit it to read all topics")
    return topics


def _pattern(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"{name} is empty; omit it to read all topics")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"{name} is {text!r}, which is not a valid regular expression ({error})"
        ) from error
    return text


def _assigned(name: str, text: str) -> dict[str, tuple[int, ...]]:
    example = '{"topic":[0,1]}'
    found = json_of(name, text, example)
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{name} is {text!r}; it must be JSON like {example}")
    for queues in found.values():
        if not isinstance(queues, list) or not queues or not all(_is_count(q) for q in queues):
            raise ConfigError(f"{name} is {text!r}; it must be JSON like {example}")
    return {topic: tuple(sorted(set(queues))) for topic, queues in found.items()}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _either(name: str, text: str) -> tuple[str, ...]:
    """Return the words of `a || b`; `*` alone means all."""
    # As in the other selections of tags; a key may have any character but a space.
    outer = TRIMMED if name == "tags" else " "
    found = tuple(word.strip(outer) for word in text.split("||"))
    if found == ("*",):
        return ()
    if not all(found) or "*" in found:
        raise ConfigError(
            f"{name} is {text!r}; give one, or several separated by ||, for example 'a || b'"
        )
    return found


def _group(name: str, text: str) -> str:
    if not _GROUP.fullmatch(text):
        raise ConfigError(
            f"{name} is {text!r}; it must be 1 to 128 letters, digits, '_', '-' and '.', "
            f"and begin with a letter or digit"
        )
    return text


# --- the options


@attrs.frozen(kw_only=True)
class SourceOptions:
    """All options of the source; docs/spark-source.md describes them.

    Attributes:
        given: the options as given. `streaming`: whether they were parsed for a stream; None if not known yet.
        streaming: see `given`.
    """

    # As in a table.
    # fmt: off
    given: dict[str, str] = attrs.field(factory=dict, repr=False)
    streaming: bool | None = False
    path: str | None = optional("path", plain, None, "a folder, pattern or URL")
    path_list: tuple[str, ...] = optional("paths", _paths, (), "several of them, as a JSON list")
    subscribed: tuple[str, ...] = optional("subscribe", _topics, (), "the topics to read; empty for all")
    pattern: str = optional("subscribePattern", _pattern, "", "a regular expression that topics must match as a whole")
    assigned: dict[str, tuple[int, ...]] = optional("assign", _assigned, attrs.Factory(dict),
        "the queues to read of each topic; empty for all")
    since: Bound | None = optional("since", one_moment(EARLIEST), None, "only messages stored at or after this time")
    until: Bound | None = optional("until", one_moment(LATEST), None, "only messages stored at or before this time")
    starting_offsets: Bound | None = optional("startingOffsets", offsets(EARLIEST), None,
        "where to start; see `starting`")
    ending_offsets: Bound | None = optional("endingOffsets", offsets(LATEST), None, "where to end; see `ending`")
    starting_time: Bound | None = optional("startingTimestamp", one_time(EARLIEST), None,
        "one time to start at, for all queues")
    ending_time: Bound | None = optional("endingTimestamp", one_time(LATEST), None,
        "one time to end at, for all queues")
    starting_times: Bound | None = optional("startingOffsetsByTimestamp", times(EARLIEST), None,
        "a time to start at for each queue")
    ending_times: Bound | None = optional("endingOffsetsByTimestamp", times(LATEST), None,
        "a time to end at for each queue")
    fail_on_loss: bool = option("failOnDataLoss", truth, "true",
        "missing messages are an error; if false, they are skipped with a warning")
    rows_per_trigger: int = optional("maxOffsetsPerTrigger", whole(1, NUMBER_MAX), 0,
        "at most so many rows in one batch of a stream; 0 for all")
    bytes_per_trigger: int = optional("maxBytesPerTrigger", size_of, 0,
        "about so many bytes of log in one batch of a stream; 0 for all")
    min_partitions: int = optional("minPartitions", whole(1, _PARTITIONS_MAX), 0,
        "about so many tasks or more, never more than rows; 0 chooses by size")
    headers: bool = option("includeHeaders", truth, "false", "add the column `headers`")
    tags: tuple[str, ...] = optional("tags", _either, (), "only messages with one of these tags; empty for all")
    keys: tuple[str, ...] = optional("keys", _either, (), "only messages with one of these keys; empty for all")
    group: str = optional("group", _group, "", "the name under which a stream's start is kept; empty for none")
    rows_per_batch: int = option("rowsPerBatch", whole(1, _ROWS_MAX), "8192", "rows of one Arrow batch passed to Spark")
    verify: bool = option("verifyChecksums", truth, "true", "check every record's CRC")
    # fmt: on

    @property
    def paths(self) -> tuple[str, ...]:
        """Folders, patterns or URLs, as they were given."""
        return self.path_list if self.path is None else (self.path, *self.path_list)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to read; empty for all."""
        return tuple(self.assigned) or self.subscribed

    @property
    def starting(self) -> Bound:
        """Where to start: one time takes precedence over times, and times over offsets, as in Kafka."""
        word = LATEST if self.streaming else EARLIEST
        by_time = self.since or self.starting_time or self.starting_times
        if by_time is not None:
            return attrs.evolve(by_time, word=word)
        return self.starting_offsets or Bound(name="startingOffsets", word=word)

    @property
    def ending(self) -> Bound:
        """Where to end, with the same precedence."""
        found = self.until or self.ending_time or self.ending_times or self.ending_offsets
        return found or Bound(name="endingOffsets", word=LATEST)

    def wants(self, topic: str) -> bool:
        """Return whether a topic is requested; one whose messages wait is requested by its name only."""
        if self.topics:
            return topic in self.topics
        if is_waiting(topic):
            return False
        return not self.pattern or re.fullmatch(self.pattern, topic) is not None

    def wants_queue(self, topic: str, queue: int) -> bool:
        """Return whether a queue of a requested topic is requested."""
        return not self.assigned or queue in self.assigned[topic]


_OWN = {option.name for option in declared(SourceOptions).values()}
# A read ignores it, as it ignores Spark's own.
_IGNORED = {"stagingRetention"}
# What belongs to writing: the sink's options, one of Spark's, and `queues`, which is called `partitions`.
SINK_OPTIONS = (
    *(o.name for o in declared(SinkOptions).values() if o.name not in _OWN | _IGNORED),
    "queues",
    "checkpointLocation",
)
_SINKS = "is an option of the sink: give it to write or writeStream, not to a read"
# Names of `Store.scan`, and how the source, with Kafka's names, says the same.
_ELSEWHERE = {
    "topics": "is called 'subscribe' here: topics, separated by commas",
    "queue": """is called 'assign' here: '{"orders":[0]}'""",
    "start": "is called 'startingOffsets' here, or 'since' for a time",
    "limit": "is no option: call limit() of the frame",
}
# These say the same thing, so at most one is given.
_PICKS = ("subscribe", "subscribePattern", "assign")
# Of these the first that is given counts, and the others are not looked at.
_STARTINGS = ("since", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDINGS = ("until", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")


def parse_options(options: Mapping[str, str], *, streaming: bool | None = False) -> SourceOptions:
    """Return the options of a batch or a streaming read; `streaming` is None if that is not known yet.

    Raises:
        ConfigError: a name is a misspelt option, a value is invalid, or two options exclude each other.
    """
    given = GivenOptions(options, SourceOptions, dict.fromkeys(SINK_OPTIONS, _SINKS) | _ELSEWHERE)
    _check_names(given, streaming=streaming)
    unseen = {
        name for ways in (_STARTINGS, _ENDINGS) for name in [w for w in ways if w in given][1:]
    }
    found = SourceOptions(given=dict(options), streaming=streaming, **given.values(without=unseen))
    _check_values(found)
    # Other processes parse the options again, later: `1h` must mean the same there.
    fixed = {"since": found.since, "until": found.until}
    times = {name: _time_text(bound) for name, bound in fixed.items() if bound and name in options}
    return attrs.evolve(found, given={**options, **times})


def _time_text(bound: Bound) -> str:
    """Return the time of `since` or `until` as a text that has no other meaning later."""
    assert bound.time_ms is not None
    time_ms = bound.time_ms - (bound.word == LATEST)
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat()


def _check_names(given: GivenOptions, *, streaming: bool | None) -> None:
    picks = [name for name in _PICKS if name in given]
    if len(picks) > 1:
        raise ConfigError(f"{picks[0]} and {picks[1]} were both given; give one of {_PICKS}")
    if "path" not in given and "paths" not in given:
        raise ConfigError("give the store's folder: load(path), or several: load([path, path])")
    for name in _ENDINGS if streaming else ():
        if name in given:
            raise ConfigError(f"{name}: a stream has no end; omit the option, or use spark.read")


def _check_values(options: SourceOptions) -> None:
    if not options.paths or not all(path.strip() for path in options.paths):
        raise ConfigError("a path is empty; give the store's folder")
    if options.streaming is False and options.starting.has(LATEST):
        raise ConfigError(
            "startingOffsets: a batch query cannot start at 'latest' (-1); use 'earliest' or JSON"
        )
    if options.ending.has(EARLIEST):
        raise ConfigError(
            "endingOffsets: a query cannot end at 'earliest' (-2); use 'latest' or JSON"
        )
