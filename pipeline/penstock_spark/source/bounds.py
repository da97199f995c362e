"""Where a read starts and where it ends: offsets or times, for all queues or for each. This module does not import pyspark."""

import re

import attrs

from penstock.errors import ConfigError
from penstock_spark.option_parser import Parser, json_of, whole

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
NUMBER_MAX = (1 << 63) - 1

# Topic to queue to a number; and the same for each of several stores.
Queues = dict[str, dict[int, int]]
PerStore = dict[str, Queues]


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
        return self.word == word or any(word in queues.values() for queues in topics)


def one_time(word: int) -> Parser[Bound]:
    """Return a parser of one time for all queues, in Unix milliseconds."""

    def parse(name: str, text: str) -> Bound:
        return Bound(name=name, word=word, time_ms=whole(0, NUMBER_MAX)(name, text))

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
            store: {
                topic: {_queue(queue): _number(value, least) for queue, value in queues.items()}
                for topic, queues in topics.items()
            }
            for store, topics in stores.items()
        }
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{name} is {text!r}; it must be JSON like {example} ({error})"
        ) from error


def _queue(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is not a queue number")
    return int(text)


def _number(value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= NUMBER_MAX:
        of_it = "; -2 is earliest, -1 latest" if least < 0 else ""
        raise ValueError(f"{value!r} is not a whole number from {least} on{of_it}")
    return value
