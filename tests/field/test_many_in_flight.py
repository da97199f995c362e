"""`max_in_flight` above 2,000, with one queue: other limits must not undercut it without a word."""

from pathlib import Path
from typing import Any

import penstock
from penstock import Message


def test_one_queue_hands_out_as_many_as_the_option_says(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s") as store:
        store.put_many([Message("t", b"", queue=0) for _ in range(2600)])
        with store.consumer("g", "t", max_in_flight=2500) as consumer:
            for sought in (False, True):
                if sought:
                    consumer.seek("t", 0, offset=0)
                found: list[Any] = []
                while some := consumer.gather(1000):
                    found += some
                assert [each.queue_offset for each in found] == list(range(2500))
                assert len(consumer.pending()) == 2500
