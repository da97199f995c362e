"""The source's options: Kafka's names where Kafka has the thing. No pyspark in here.

Spark hands over keys in lower case and values as text. A misspelt option of ours is refused with a hint, one
that belongs to the sink with a word about that; Spark's own are passed over.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from penstock.errors import ConfigError
from penstock_spark.option_parser import Given

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_NAMES = (
    "path",
    "paths",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "includeHeaders",
    "tags",
    "keys",
    "group",
    "rowsPerBatch",
    "verifyChecksums",
)
_SINKS = "is the sink's: give it to write or writeStream, not to a read"
SINK_OPTIONS = (
    "topic",
    "shards",
    "partitioner",
    "partitions",
    "queues",
    "txnAppId",
    "txnVersion",
    "lockTimeout",
    "checkpointLocation",
)
_ENDINGS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_PICKS = ("subscribe", "subscribePattern", "assign")
_ROWS_MAX = 65_536
_MANY = (1 << 63) - 1
_PARTITIONS_MAX = 1_000_000
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

# Topic to queue to a number; and the same for each of several stores.
Queues = dict[str, dict[int, int]]
PerStore = dict[str, Queues]


@attrs.frozen(kw_only=True)
class Bound:
    """Where to start, or where to end. At most one of these is more than the default.

    Attributes:
        name: the option that says so.
        word: EARLIEST or LATEST: for all that is not named elsewhere.
        numbers: store to topic to queue to offset (-2 earliest, -1 latest), or to Unix milliseconds; the
            store is "" where there is only one.
        are_times: whether `numbers` are times.
        time_ms: one time for all queues.
    """

    name: str
    word: int
    numbers: PerStore = attrs.Factory(dict)
    are_times: bool = False
    time_ms: int | None = None


@attrs.frozen(kw_only=True)
class SourceOptions:
    """What to read, and how; see docs/spark-source.md for each.

    Attributes:
        given: the options as they were given, and `streaming` what they were parsed for.
        streaming: see `given`.
        paths: folders, patterns or URLs, as they were given.
        topics: the topics to read; empty for all.
        pattern: a regular expression that topics must match as a whole.
        assigned: the queues to read of each topic; empty for all.
        starting: where to start.
        ending: where to end.
        late_is_error: a starting time behind the last message is an error, not the end of the queue.
        fail_on_loss: messages that are gone are an error; else they are passed over and logged.
        rows_per_trigger: so many rows in one batch of a stream at most; 0 for all.
        bytes_per_trigger: so many bytes of log, about; 0 for all.
        min_partitions: so many tasks at least, if there are as many rows; 0 for what suits the size.
        headers: add the column `headers`.
        tags: only messages with one of these tags.
        keys: only messages with one of these keys.
        group: the name under which a stream's start is kept; empty for none.
        rows_per_batch: rows of one Arrow batch handed to Spark.
        verify: check every record's CRC.
    """

    given: dict[str, str] = attrs.field(factory=dict, repr=False)
    streaming: bool | None = False
    paths: tuple[str, ...]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: dict[str, tuple[int, ...]] = attrs.Factory(dict)
    starting: Bound = Bound(name="startingOffsets", word=EARLIEST)
    ending: Bound = Bound(name="endingOffsets", word=LATEST)
    late_is_error: bool = True
    fail_on_loss: bool = True
    rows_per_trigger: int = 0
    bytes_per_trigger: int = 0
    min_partitions: int = 0
    headers: bool = False
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    group: str = ""
    rows_per_batch: int = 8192
    verify: bool = True

    def wants(self, topic: str) -> bool:
        """Say whether a topic is asked for."""
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return not self.topics or topic in self.topics

    def wants_queue(self, topic: str, queue: int) -> bool:
        """Say whether a queue of such a topic is asked for."""
        return not self.assigned or queue in self.assigned[topic]


def parse_options(options: Mapping[str, str], *, streaming: bool | None = False) -> SourceOptions:
    """Return the options of a batch or a streaming read, checked; None where that is not known yet."""
    given = Given(options, _NAMES, dict.fromkeys(SINK_OPTIONS, _SINKS))
    picks = [name for name in _PICKS if name in given]
    if len(picks) > 1:
        raise ConfigError(f"{picks[0]} and {picks[1]} were both given; give one of {_PICKS}")
    assigned = _assigned(given)
    strategies = ("error", "latest")
    return SourceOptions(
        given=dict(options),
        streaming=streaming,
        paths=_paths(given),
        topics=tuple(assigned) or _topics(given),
        pattern=_pattern(given),
        assigned=assigned,
        starting=_starting(given, streaming=streaming),
        ending=_ending(given, streaming=streaming),
        late_is_error=given.choice("startingOffsetsByTimestampStrategy", strategies, "error")
        == "error",
        fail_on_loss=given.truth("failOnDataLoss", default=True),
        rows_per_trigger=_positive(given, "maxOffsetsPerTrigger", _MANY),
        bytes_per_trigger=given.size("maxBytesPerTrigger", 0),
        min_partitions=_positive(given, "minPartitions", _PARTITIONS_MAX),
        headers=given.truth("includeHeaders", default=False),
        tags=_either(given, "tags"),
        keys=_either(given, "keys"),
        group=_group(given),
        rows_per_batch=given.whole("rowsPerBatch", 8192, 1, _ROWS_MAX),
        verify=given.truth("verifyChecksums", default=True),
    )


def _positive(given: Given, name: str, most: int) -> int:
    return given.whole(name, 1, 1, most) if name in given else 0


def _paths(given: Given) -> tuple[str, ...]:
    one, several = given.text("path"), given.text("paths")
    if one is None and several is None:
        raise ConfigError("give the store's folder: load(path), or several: load([path, path])")
    found = [] if one is None else [one]
    if several is not None:
        listed = parse_json("paths", several, '["data/one", "data/two"]')
        if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
            raise ConfigError(f"paths is {several!r}; it must be a JSON list of folders")
        found += listed
    if not found or not all(path.strip() for path in found):
        raise ConfigError("a path is empty; give the store's folder")
    return tuple(found)


def _topics(given: Given) -> tuple[str, ...]:
    topics = given.words("subscribe")
    if "subscribe" in given and not topics:
        raise ConfigError("subscribe names no topic; leave it out for all of them")
    return topics


def _pattern(given: Given) -> str:
    pattern = given.text("subscribePattern", "") or ""
    if "subscribePattern" in given and not pattern:
        raise ConfigError("subscribePattern is empty; leave it out for all topics")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"subscribePattern is {pattern!r}, which is no regular expression ({error})"
        ) from error
    return pattern


def _either(given: Given, name: str) -> tuple[str, ...]:
    """Return the words of `a || b`; `*` alone means all."""
    text = (given.text(name, "*") or "").strip()
    if text == "*":
        return ()
    words = tuple(word.strip() for word in text.split("||"))
    if not all(words) or "*" in words:
        raise ConfigError(f"{name} is {text!r}; give one, or several parted by ||, as in 'a || b'")
    return words


def _group(given: Given) -> str:
    group = given.text("group", "") or ""
    if "group" in given and not _GROUP.fullmatch(group):
        raise ConfigError(
            f"group is {group!r}; it must be 1 to 128 letters, digits, '_', '-' and '.', "
            f"and begin with a letter or digit"
        )
    return group


# --- JSON


def parse_json(name: str, text: str, example: str) -> Any:
    """Return what an option's JSON says."""
    try:
        return json.loads(text, object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is {text!r}, which is no JSON as {example} ({error})") from error


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands in it twice")
    return found


def _assigned(given: Given) -> dict[str, tuple[int, ...]]:
    text = given.text("assign")
    if text is None:
        return {}
    example = '{"topic":[0,1]}'
    found = parse_json("assign", text, example)
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"assign is {text!r}; it must be JSON as {example}")
    for queues in found.values():
        if not isinstance(queues, list) or not queues or not all(_is_count(q) for q in queues):
            raise ConfigError(f"assign is {text!r}; it must be JSON as {example}")
    return {topic: tuple(sorted(set(queues))) for topic, queues in found.items()}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def parse_numbers(name: str, text: str, least: int) -> PerStore:
    """Return `{"topic":{"0":5}}` under the store "", or `{"store":{"topic":{"0":5}}}` as it is."""
    example = '{"topic":{"0":23,"1":-2}}' if least < 0 else '{"topic":{"0":1760000000000}}'
    found = parse_json(name, text, example)
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is {text!r}; it must be JSON as {example}")
    is_nested = any(
        isinstance(inner, dict) and any(isinstance(most, dict) for most in inner.values())
        for inner in found.values()
    )
    stores = found if is_nested else {"": found}
    try:
        return {
            store: {
                topic: {_queue(queue): _number(value, least) for queue, value in queues.items()}
                for topic, queues in topics.items()
            }
            for store, topics in stores.items()
        }
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{name} is {text!r}; it must be JSON as {example} ({error})") from error


def _queue(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is no queue")
    return int(text)


def _number(value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MANY:
        of_it = "; -2 is earliest, -1 latest" if least < 0 else ""
        raise ValueError(f"{value!r} is not a whole number from {least} on{of_it}")
    return value


# --- bounds


def _starting(given: Given, *, streaming: bool | None) -> Bound:
    word = LATEST if streaming else EARLIEST
    bound = _bound(given, "starting", word)
    if streaming is False and _has(bound, LATEST):
        raise ConfigError(
            "startingOffsets: a batch query cannot start at 'latest' (-1); use 'earliest' or JSON"
        )
    return bound


def _ending(given: Given, *, streaming: bool | None) -> Bound:
    for name in _ENDINGS if streaming else ():
        if name in given:
            raise ConfigError(f"{name}: a stream has no end; leave it out, or use spark.read")
    bound = _bound(given, "ending", LATEST)
    if _has(bound, EARLIEST):
        raise ConfigError(
            "endingOffsets: a query cannot end at 'earliest' (-2); use 'latest' or JSON"
        )
    return bound


def _has(bound: Bound, word: int) -> bool:
    if bound.are_times:
        return False
    named = (n for t in bound.numbers.values() for queues in t.values() for n in queues.values())
    return (bound.word == word and bound.time_ms is None) or word in set(named)


def _bound(given: Given, side: str, word: int) -> Bound:
    """Return a bound: of several options the one time counts first, then times, then offsets, as with Kafka."""
    name = f"{side}Timestamp"
    if name in given:
        return Bound(name=name, word=word, time_ms=given.whole(name, 0, 0, _MANY))
    name = f"{side}OffsetsByTimestamp"
    text = given.text(name)
    if text is not None:
        numbers = parse_numbers(name, text, 0)
        return Bound(name=name, word=word, numbers=numbers, are_times=True)
    name = f"{side}Offsets"
    text = given.text(name)
    if text is None:
        return Bound(name=name, word=word)
    if text.strip().lower() in _WORDS:
        return Bound(name=name, word=_WORDS[text.strip().lower()])
    default = EARLIEST if side == "starting" else LATEST
    return Bound(name=name, word=default, numbers=parse_numbers(name, text, EARLIEST))
