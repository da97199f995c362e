"""What a shell and an editor show of the objects that programs have: signatures, and texts that tell them apart."""

from pathlib import Path

import pytest

import penstock
from penstock import ArgumentError, ConfigError, Message, MessageError, UnknownTopicError
from penstock.contracts import Consumer
from penstock.testing import ManualClock, open_store


def test_texts_say_what_and_where(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", clock=ManualClock(1_700_000_000_123)) as store:
        store.put("orders", b"b" * 40, queue=0, tag="paid", keys=["A-17"])
        (message,) = store.read("orders", 0).messages
        assert repr(message) == (
            "StoredMessage(topic='orders', queue=0, queue_offset=0, log_offset=0, tag='paid', keys=('A-17',), "
            "store_time_ms=1700000000123 (2023-11-14T22:13:20.123+00:00), body=b'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'... (40 bytes))"
        )
        with store.consumer("billing", "orders") as consumer:
            (handed,) = consumer.poll()
            assert repr(handed) == f"<attempt 1, first topic 'orders': {message!r}>"
            assert "'billing'" in repr(consumer)
            assert "orders/0" in repr(consumer)
            assert {"body", "keys", "properties", "reason", "store_time_ms"} <= {*dir(handed)}
            assert {"poll", "ack", "pause"} <= {*dir(consumer)} <= {*dir(Consumer)}
        assert repr(store) == f"<Store {str(tmp_path / 's')!r}, for writing>"
    assert repr(store) == f"<Store {str(tmp_path / 's')!r}, closed>"
    with penstock.open(tmp_path / "s", read_only=True) as reader:
        assert "read-only" in repr(reader)


def test_the_text_of_a_message_has_what_was_given_and_no_more_than_the_begin_of_a_body() -> None:
    assert repr(Message("t", b"x", queue=3, tag="a")) == "Message(topic='t', body=b'x', queue=3, tag='a')"  # fmt: skip
    assert "... (200 bytes)" in repr(Message("t", b"x" * 200, queue=0))
    assert repr(Message("t", 5)) == "Message(topic='t', body=5)"  # type: ignore[arg-type] # on purpose


def test_a_slip_is_answered_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no mode is expected here: read_only opens for reading"):
        penstock.open(tmp_path / "s", "r", environ={})
    with open_store(tmp_path / "s") as store:
        options: dict[str, int] = {"retries": 3}
        with pytest.raises(ArgumentError, match=r"did you mean 'max_retries'\?"):
            store.consumer("billing", "orders", **options)  # type: ignore[arg-type] # on purpose
        with pytest.raises(
            MessageError, match="delay '3 s' is refused: it must be seconds or a timedelta"
        ):
            store.put("t", b"x", queue=0, delay="3 s")  # type: ignore[arg-type] # on purpose


def test_a_topic_that_is_not_there_is_answered_with_the_nearest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path / "s") as store:
        store.put("orders", b"x", queue=0)
        store.create_topic("order-log")
        with pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
            store.read("ordrs", 0)
        with pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
            store.offset_at("ordrs", 0, 0)
        with pytest.raises(
            ArgumentError, match=r"queue must be a queue of topic 'orders': \[0, 1, 2, 3\]"
        ):
            store.read("orders", 9)
        with pytest.raises(ArgumentError, match="queue must be a queue of topic 'order-log'"):
            store.offset_at("order-log", 4, 0)
        with pytest.raises(ArgumentError, match="limit must be a whole number, 1 or more"):
            store.scan("orders", limit=0)
        assert store.read("order-log", 0).next_offset == 0
        store.consumer("billing", ["order-log", "invoices", "order*"]).close()
        assert not caplog.messages
        store.consumer("billing", "ordrs").close()
    assert "waits for topic 'ordrs', which does not exist; did you mean 'orders'?" in caplog.text
