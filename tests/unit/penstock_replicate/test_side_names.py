"""Which files travel beside the log, and what they may hold."""

import json
from collections.abc import Callable

import pytest

from penstock_replicate.beside.side_names import SIDE_NAMES, check_content

GOOD = {
    "penstock/store-id": b"0123456789abcdef\n",
    "penstock/auto-topics": b'{"orders": 4}',
    "config/topics.json": b'{"topicConfigTable":{"orders":{}},"dataVersion":{"counter":1}}',
    "config/subscriptionGroup.json": b'{"subscriptionGroupTable":{}}',
    "config/consumerOffset.json": b'{"offsetTable":{"orders@billing":{0:12,1:3}}}',
    "config/delayOffset.json": b'{"offsetTable":{1:2}}',
    "config/timercheck": bytes(4096),
}


def test_every_file_has_a_content_that_is_taken() -> None:
    assert list(GOOD) == list(SIDE_NAMES)
    for name, data in GOOD.items():
        assert check_content(name, data) is SIDE_NAMES[name]


def test_all_files_fit_into_a_message_of_either_protocol() -> None:
    assert all(len(name) < 64 and name.isascii() for name in SIDE_NAMES)


@pytest.mark.parametrize(
    "name",
    [
        "", "/etc/passwd", "../config/topics.json", "config/../config/topics.json", "config/topics.json.bak",
        "config//topics.json", "config/topics.json\0", "penstock/replica", "commitlog/00000000000000000000", "lock",
    ],
)  # fmt: skip
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="travels beside the log"):
        check_content(name, b"{}")


@pytest.mark.parametrize("name", [name for name in SIDE_NAMES if name.endswith(".json")])
@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 100_000,
        b'{"offsetTable":[],"topicConfigTable":1,"subscriptionGroupTable":null}',
        b'{"offsetTable":{},"topicConfigTable":{},"subscriptionGroupTable":{},"dataVersion":3}',
    ],
)  # fmt: skip
def test_what_is_no_json_with_its_table_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=name):
        check_content(name, data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("config/consumerOffset.json", b'{"offsetTable":{"orders@billing":7}}'),
        ("penstock/auto-topics", b'{"orders": "4"}'),
        ("penstock/auto-topics", b"[]"),
        ("penstock/store-id", b"0123456789abcdeg\n"),
        ("penstock/store-id", b"0123456789abcdef"),
        ("config/timercheck", bytes(31)),
        ("config/timercheck", b"\xff" * 56),
    ],
)
def test_what_is_none_of_the_file_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=name):
        check_content(name, data)


def too_large_json(limit: int) -> bytes:
    return json.dumps({"offsetTable": {"x" * limit: {}}}).encode()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("config/timercheck", lambda limit: bytes(limit + 1)),
        ("penstock/store-id", lambda limit: b"0" * (limit + 1)),
        ("config/consumerOffset.json", too_large_json),
    ],
)
def test_what_is_larger_than_the_limit_is_refused(name: str, make: Callable[[int], bytes]) -> None:
    with pytest.raises(ValueError, match="the limit is"):
        check_content(name, make(SIDE_NAMES[name].bytes_max))
