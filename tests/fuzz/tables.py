"""Fuzz target: RocketMQ's JSON, in both its forms, as the table of consumer offsets."""

import functools
import json
from pathlib import Path

from tests.fuzz.ground import folder

from penstock.errors import CorruptionError
from penstock.files import Files
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock.store.consumer_offsets import ConsumerOffsets


@functools.cache
def _root() -> Path:
    root = folder()
    (root / "config").mkdir()
    return root


def target(data: bytes) -> None:
    path = _root() / "config" / "consumerOffset.json"
    path.write_bytes(data)
    path.with_name(path.name + ".bak").unlink(missing_ok=True)
    _compare(data)
    reading = ConsumerOffsets(Files(), _root(), read_only=True)
    try:
        before = reading.groups()
    except CorruptionError as error:
        assert error.path == path
        return
    writing = ConsumerOffsets(Files(), _root(), read_only=False)
    writing.put("g", "t", 1, 7)
    after = ConsumerOffsets(Files(), _root(), read_only=True)
    assert after.get("g", "t", 1) == 7
    before.setdefault(("g", "t"), {})[1] = 7
    assert after.groups() == before, "writing one offset changes no other"


def _compare(data: bytes) -> None:
    """What is JSON already means the same to the tolerant reader."""
    try:
        text = data.decode()
        strict = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(strict, dict):
        assert repr(parse_rocketmq_json(text)) == repr(strict)
