"""The source's options: Kafka's names where Kafka has the thing. No pyspark in here.

Spark hands over keys in lower case and values as text. A misspelt option of ours is refused with a hint;
Spark's own are passed over.
"""

import difflib
import json
from collections.abc import Mapping

import attrs

from penstock.errors import ConfigError

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_OURS = (
    "path",
    "paths",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "rowsPerBatch",
    "verifyChecksums",
)
_BY_LOWER = {name.lower(): name for name in _OURS}
# What a misspelling has to be as near as, so that options of Spark's own are let through.
_NEAR = 0.75
_ROWS_MAX = 65_536

Bound = int | dict[str, dict[int, int]]


@attrs.frozen(kw_only=True)
class SourceOptions:
    """What to read.

    Attributes:
        path: the store's folder.
        topics: the topics to read; empty for all.
        starting: EARLIEST, or topic to queue to offset (-2 earliest); a queue not named is at its earliest.
        ending: LATEST, or topic to queue to offset (-1 latest); a queue not named is at its latest.
        rows_per_batch: rows of one Arrow batch handed to Spark.
        verify: check every record's CRC.
    """

    path: str
    topics: tuple[str, ...] = ()
    starting: Bound = EARLIEST
    ending: Bound = LATEST
    rows_per_batch: int = 8192
    verify: bool = True


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options, checked."""
    known: dict[str, str] = {}
    for key, value in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is not None:
            known[name] = value
        elif near := difflib.get_close_matches(key.lower(), _BY_LOWER, 1, _NEAR):
            raise ConfigError(f"there is no option {key!r}; did you mean {_BY_LOWER[near[0]]!r}?")
    if "path" not in known:
        raise ConfigError("give the store's folder: load(path), one folder")
    starting = _bound(known, "startingOffsets", EARLIEST)
    if starting == LATEST:
        raise ConfigError(
            "startingOffsets: a batch query cannot start at 'latest'; use 'earliest' or JSON"
        )
    ending = _bound(known, "endingOffsets", LATEST)
    if ending == EARLIEST:
        raise ConfigError("endingOffsets: a query cannot end at 'earliest'; use 'latest' or JSON")
    topics = (text.strip() for text in known.get("subscribe", "").split(","))
    return SourceOptions(
        path=known["path"],
        topics=tuple(topic for topic in topics if topic),
        starting=starting,
        ending=ending,
        rows_per_batch=_whole(known, "rowsPerBatch", 8192),
        verify=_truth(known, "verifyChecksums"),
    )


def _bound(known: Mapping[str, str], name: str, default: int) -> Bound:
    text = known.get(name)
    if text is None:
        return default
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        found = {
            str(topic): {int(queue): int(offset) for queue, offset in queues.items()}
            for topic, queues in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{name} is {text!r}; it must be 'earliest', 'latest', or JSON as "
            f'{{"topic":{{"0":23,"1":-2}}}} ({error})'
        ) from error
    for queues in found.values():
        for offset in queues.values():
            if offset < EARLIEST:
                raise ConfigError(f"{name} has offset {offset}; -2 is earliest, -1 latest")
    return found


def _whole(known: Mapping[str, str], name: str, default: int) -> int:
    text = known.get(name, str(default))
    if not text.isdigit() or not 1 <= int(text) <= _ROWS_MAX:
        raise ConfigError(f"{name} is {text!r}; it must be a whole number, 1 to {_ROWS_MAX}")
    return int(text)


def _truth(known: Mapping[str, str], name: str) -> bool:
    text = known.get(name, "true").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}; it must be true or false")
    return text == "true"
