"""A broker that has consumed on hands the directory back: nothing is lost, and nothing sounds like a loss."""

import json
import logging
from pathlib import Path

import pytest

import penstock


@pytest.mark.parametrize(("offset", "is_loss"), [(6, False), (1, True)])
def test_only_what_is_dropped_unconsumed_is_a_warning(
    offset: int, is_loss: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    with penstock.open(root, environ={}) as store:
        store.create_topic("t", queues=1)
        for _ in range(6):
            store.put("t", b"x", queue=0)
        with store.consumer("g", "t") as consumer:
            # Together: of acknowledgements that the writer takes in apart, the last but one would count as our own, too.
            consumer.ack(consumer.poll(3))
    path = root / "config" / "consumerOffset.json"
    table = json.loads(path.read_text())
    assert table["offsetTable"] == {"t@g": {"0": 3}}
    table["offsetTable"]["t@g"]["0"] = offset
    path.write_text(json.dumps(table))
    with (
        caplog.at_level(logging.WARNING),
        penstock.open(root, environ={}) as store,
        store.consumer("g", "t") as consumer,
    ):
        assert len(consumer.poll(10, timeout=0)) == 6 - offset
    assert ("journal" in caplog.text) == is_loss
