"""The properties text of a record: `name 0x01 value 0x02`, repeated.

Both trailing forms are read (with and without the last 0x02: RocketMQ 4.9.1 to 5.1.4 leave it out);
what is written always ends in 0x02. Source: spec section 2.7.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat

from penstock.errors import NotYetError, PropertyError

NAME_END = "\x01"
PAIR_END = "\x02"
TAGS = "TAGS"
KEYS = "KEYS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
CRC32 = "__CRC32#"

_UNWRITTEN = bytes(512)
_OWN_ARGUMENT = {TAGS: "tag=", KEYS: "keys="}
DELAYS = frozenset({DELAY, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})


def encode_properties(
    tag: str, keys: Iterable[str], properties: Mapping[str, str] | None = None
) -> bytes:
    """Return the properties text, tag and keys first; refuse what a reader could not get back."""
    if not properties and type(tag) is str and (type(keys) is tuple or type(keys) is list):
        if len(keys) == 1:
            key = keys[0]
            # Printable is more than is asked for; what is not goes the long way.
            if type(key) is str and key.isprintable() and key[:1] > " ":
                return tag_text(tag) + f"{KEYS}{NAME_END}{key}{PAIR_END}".encode()
        plain = _plain_text(tag, keys)
        if plain is not None:
            return plain
    parts = []
    if tag:
        parts.append(f"{TAGS}{NAME_END}{_checked(TAGS, tag)}{PAIR_END}")
    if keys:
        text = " ".join(_checked_keys(keys))
        parts.append(f"{KEYS}{NAME_END}{text}{PAIR_END}")
    for name, value in (properties or {}).items():
        if name == CRC32:
            # A CRC of another record, or no CRC at all: the store writes its own, or none.
            continue
        _check_name(name)
        parts.append(f"{name}{NAME_END}{_checked(name, value)}{PAIR_END}")
    return _utf8("".join(parts))


def texts_of(tags: Sequence[str], keys: Sequence[Sequence[str]]) -> list[bytes]:
    """Return what `encode_properties` says of each tag and its keys."""
    plain = _one_key_each(tags, keys)
    return list(map(encode_properties, tags, keys)) if plain is None else plain


def _one_key_each(tags: Sequence[str], keys: Sequence[Sequence[str]]) -> list[bytes] | None:
    """Return the texts by one check over all of them; None where not each has one plain key and the same tag."""
    if (
        set(map(type, keys)) != {tuple} or set(map(len, keys)) != {1}
        or type(tags[0]) is not str or tags.count(tags[0]) < len(tags)
    ):  # fmt: skip
        return None
    words = [word for (word,) in keys]
    if set(map(type, words)) != {str} or not all(words):
        return None
    together = "".join(words)
    if " " in together or not together.isprintable():
        return None
    start = tag_text(tags[0]).decode() + KEYS + NAME_END
    return [f"{start}{word}{PAIR_END}".encode() for word in words]


@lru_cache(1024)
def tag_text(tag: str) -> bytes:
    """Return the text of a tag, checked; the few that there are come again and again."""
    return _utf8(f"{TAGS}{NAME_END}{_checked(TAGS, tag)}{PAIR_END}") if tag else b""


def _plain_text(tag: str, keys: Sequence[str]) -> bytes | None:
    """Return the text of a tag and keys by one check over all of it; None if anything is not plain."""
    try:
        words = " ".join(keys)
        if not all(map(str.strip, keys, repeat(" "))):
            return None
        text = f"{TAGS}{NAME_END}{tag}{PAIR_END}" if tag else ""
        if words:
            text += f"{KEYS}{NAME_END}{words}{PAIR_END}"
        count = bool(tag) + bool(words)
        is_plain = text.count(NAME_END) == count and text.count(PAIR_END) == count
        return text.encode() if is_plain else None
    except (TypeError, UnicodeEncodeError):
        return None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        name = text[: error.start].rpartition(PAIR_END)[2].partition(NAME_END)[0]
        raise PropertyError(name, f"it cannot be written as UTF-8 ({error.reason})") from error


def check_zeros(text: bytes) -> None:
    """Refuse a text with so many zero bytes on end that it could not be told from one that was never written.

    Only for records without a CRC of their own; see `is_torn` in `_kernel/record.h`.
    """
    at = text.find(_UNWRITTEN)
    if at >= 0:
        name = text[:at].rpartition(PAIR_END.encode())[2].partition(NAME_END.encode())[0]
        raise PropertyError(
            name.decode("utf-8", "replace"),
            f"its value has {len(_UNWRITTEN)} zero bytes on end, which look like a lost sector of the disk "
            f"after a crash: set log.checksum to crc32+record, or encode the value otherwise",
        )


def _checked_keys(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, str):
        raise PropertyError(KEYS, "keys is a list of keys, not one string: use keys=[...]")
    texts = [_checked(KEYS, key) for key in keys]
    # A space separates keys in this format, so a key with spaces is stored as several words and
    # found again as a phrase; one of nothing but spaces could not be found.
    for text in texts:
        if not text.strip(" "):
            raise PropertyError(KEYS, "a key of nothing but spaces could never be found")
    return texts


def _checked(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise PropertyError(name, f"its value must be a string, not {type(value).__name__}")
    if not value:
        raise PropertyError(name, "its value is empty, and readers drop empty values: leave it out")
    if NAME_END in value or PAIR_END in value:
        raise PropertyError(name, "its value holds 0x01 or 0x02, which separate properties")
    return value


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise PropertyError(str(name), "a property's name must be a string that is not empty")
    if NAME_END in name or PAIR_END in name:
        raise PropertyError(name, "its name holds 0x01 or 0x02, which separate properties")
    if name in _OWN_ARGUMENT:
        raise PropertyError(name, f"give it as {_OWN_ARGUMENT[name]}")
    if name in DELAYS:
        raise NotYetError(
            f"property {name} asks for delayed delivery, which Penstock does not do yet"
        )


def decode_properties(text: bytes | memoryview) -> dict[str, str]:
    """Return the pairs of a properties text; of a name given twice the last counts, as in Java.

    The CRC of a record is left out: it is the store's, or a stale one that a broker copied. Pieces without a name, a separator or a value are dropped by RocketMQ's parser, and so by ours.
    """
    pairs = {}
    for piece in str(text, "utf-8", "replace").split(PAIR_END):
        name, _, value = piece.partition(NAME_END)
        if name and value and name != CRC32:
            pairs[name] = value
    return pairs
