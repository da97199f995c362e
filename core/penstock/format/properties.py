"""The properties text of a record: `name 0x01 value 0x02`, repeated.

Texts with and without the last 0x02 are read (RocketMQ 4.9.1 to 5.1.4 omit it); a written text always
ends in 0x02. Source: spec section 2.7.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import PropertyError
from penstock.escape import shown

NAME_END = "\x01"
PAIR_END = "\x02"
TAGS = "TAGS"
KEYS = "KEYS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
CRC32 = "__CRC32#"
# Where a message that waited is delivered to; a store adds both.
REAL_TOPIC, REAL_QID = "REAL_TOPIC", "REAL_QID"

_UNWRITTEN = bytes(512)
# As Java trims tags.
TRIMMED = "".join(map(chr, range(33)))
# The argument with which a caller sets each of these.
_OWN_ARGUMENT = {TAGS: "tag=", KEYS: "keys=", DELAY: "delay_level="}
_TIMERS = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
# Properties that ask a broker to deliver later.
DELAYS = _TIMERS | {DELAY}
_PAIR_END_BYTES = PAIR_END.encode()
_CRC_START = f"{CRC32}{NAME_END}".encode()


def encode_properties(
    tag: str | None, keys: Iterable[str] | None, properties: Mapping[str, str] | None = None
) -> bytes:
    """Return the properties text, tag and keys first; raises `PropertyError` for values that cannot be read back."""
    pairs = _pairs_of(properties)
    parts = []
    # None is accepted for no tag, no keys and no properties; other values of a wrong type, even false ones, are not.
    if tag is not None and (type(tag) is not str or tag):
        parts.append(f"{TAGS}{NAME_END}{_check_tag(tag)}{PAIR_END}")
    words = [] if keys is None else _check_keys(keys)
    if words:
        parts.append(f"{KEYS}{NAME_END}{' '.join(words)}{PAIR_END}")
    for name, value in pairs.items():
        # A CRC belongs to another record or is not one: the store writes its own, or none.
        if name == CRC32 or _is_written(name, value, tag, words):
            continue
        if not (name in DELAYS and _is_delivered(name, pairs)):
            _check_name(name)
        parts.append(f"{name}{NAME_END}{_check_value(name, value)}{PAIR_END}")
    return _utf8("".join(parts))


def _is_written(name: str, value: object, tag: object, words: list[str]) -> bool:
    """Return whether a property is the tag or the keys once more, as in the properties of a stored message."""
    if name == TAGS and tag:
        if value != tag:
            raise PropertyError(TAGS, f"it is {shown(value)}, but tag= is {shown(tag)}")
        return True
    if name == KEYS and words:
        if not isinstance(value, str) or [*filter(None, value.split(" "))] != words:
            keys = " ".join(words)
            raise PropertyError(KEYS, f"it is {shown(value)}, but keys= are {shown(keys)}")
        return True
    return False


def _is_delivered(name: str, pairs: Mapping[str, str]) -> bool:
    """Return whether a property requests no delay any more: it is of a message that was delivered, or requests none."""
    is_delivered = REAL_TOPIC in pairs and REAL_QID in pairs
    return is_delivered or (name == DELAY and pairs[name] == "0")


def _pairs_of(properties: Any) -> Mapping[str, str]:
    """Return the properties of a message; None has none. Raises `PropertyError` for anything but a mapping."""
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        kind = type(properties).__name__
        raise PropertyError(
            "properties", f"they must be a mapping of strings to strings, not {kind}"
        )
    return properties


def is_tag(tag: str) -> bool:
    """Return whether a tag expression can select a tag: `||` joins tags, `*` is any, and outer spaces do not count."""
    return "||" not in tag and tag not in ("", "*") and tag.strip(TRIMMED) == tag


def _check_tag(tag: object) -> str:
    text = _check_value(TAGS, tag)
    if not is_tag(text):
        raise PropertyError(
            TAGS,
            f"no consumer could select the tag {shown(text)}: `||` joins tags, `*` is any tag, and spaces around a tag "
            "do not count; use another tag",
        )
    return text


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        name = text[: error.start].rpartition(PAIR_END)[2].partition(NAME_END)[0]
        raise PropertyError(name, f"it cannot be written as UTF-8 ({error.reason})") from error


def check_zeros(text: bytes) -> None:
    """Raise `PropertyError` for a text with so many consecutive zero bytes that it looks like an unwritten sector.

    Only needed for records without a CRC of their own; see `is_torn` in `_kernel/record.h`.
    """
    at = text.find(_UNWRITTEN)
    if at >= 0:
        name = text[:at].rpartition(PAIR_END.encode())[2].partition(NAME_END.encode())[0]
        raise PropertyError(
            name.decode("utf-8", "replace"),
            f"its value has {len(_UNWRITTEN)} consecutive zero bytes, which look like a lost disk sector "
            f"after a crash: set log.checksum to crc32+record, or encode the value differently",
        )


def _check_keys(keys: Any) -> list[str]:
    """Return the keys as a list; raises `PropertyError` for a key that could not be found again."""
    if isinstance(keys, str):
        raise PropertyError(KEYS, "keys must be a list of keys, not one string: use keys=[...]")
    if not isinstance(keys, Iterable):
        raise PropertyError(KEYS, f"keys must be a list of strings, not {type(keys).__name__}")
    texts = [_check_value(KEYS, key) for key in keys]
    for text in texts:
        if " " in text:
            raise PropertyError(KEYS, f"a space separates keys, so {shown(text)} is not one key: give several as a "
                "list, or use another character")  # fmt: skip
    return texts


def _check_value(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise PropertyError(name, f"its value must be a string, not {type(value).__name__}")
    if not value:
        raise PropertyError(name, "its value is empty, and readers drop empty values: omit it")
    if NAME_END in value or PAIR_END in value:
        raise PropertyError(name, "its value contains 0x01 or 0x02, which separate properties")
    return value


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise PropertyError(str(name), "a property's name must be a non-empty string")
    if NAME_END in name or PAIR_END in name:
        raise PropertyError(name, "its name contains 0x01 or 0x02, which separate properties")
    if name in _OWN_ARGUMENT:
        raise PropertyError(name, f"pass it as {_OWN_ARGUMENT[name]}")
    if name in _TIMERS:
        raise PropertyError(
            name,
            "it requests delivery at a time of your choice: pass that as deliver_at= or delay=",
        )


def decode_properties(text: bytes | memoryview) -> dict[str, str]:
    """Return the pairs of a properties text; if a name occurs twice the last value counts, as in Java.

    The CRC of the record is left out: it was written by the store, or is a stale one that a broker copied. Parts
    without a name, a separator or a value are dropped, as RocketMQ's parser does.
    """
    pairs = {}
    for part in str(text, "utf-8", "replace").split(PAIR_END):
        name, _, value = part.partition(NAME_END)
        if name and value and name != CRC32:
            pairs[name] = value
    return pairs


def without_crc(text: bytes) -> bytes:
    """Return a properties text without CRC properties, which belong to the record that they are in."""
    if _CRC_START not in text:
        return text
    ending = _PAIR_END_BYTES if text.endswith(_PAIR_END_BYTES) else b""
    parts = text.removesuffix(_PAIR_END_BYTES).split(_PAIR_END_BYTES)
    kept = [part for part in parts if not part.startswith(_CRC_START)]
    return text if len(kept) == len(parts) else _PAIR_END_BYTES.join(kept) + ending if kept else b""
