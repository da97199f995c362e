"""Why a message was refused: its retries and its dead letter say so, after every way to refuse one."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run
from tests.shop import Shop

import penstock
from penstock import ArgumentError, Message, aio

HOUR_MS = 3_600_000
CARD = "ValueError: card declined"


class Rude(Exception):  # noqa: N818 - the name is what is looked at
    def __str__(self) -> str:
        raise RuntimeError


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    made = Shop(tmp_path / "s")
    yield made
    made.close()


def dead(path: Path) -> str | None:
    """Return the reason of the only dead letter, as the command line shows it."""
    (found,) = run("dlq", "show", path, "g", "--json").rows
    reason: str | None = found["reason"]
    return reason


def test_the_retry_and_the_dead_letter_say_why(shop: Shop) -> None:
    shop.store.put("t", b"x", queue=0)
    with shop.store.consumer("g", "t", max_retries=2) as consumer:
        (message,) = consumer.poll(1, timeout=0)
        assert message.reason == ""
        message.nack(reason=ValueError("card declined"))
        shop.later(HOUR_MS)
        (message,) = consumer.poll(1, timeout=0)
        assert (message.attempt, message.reason) == (2, CARD)
        message.nack()
        shop.later(HOUR_MS)
        (message,) = consumer.poll(1, timeout=0)
        assert (message.attempt, message.reason) == (3, CARD), "the last reason that was given"
        consumer.nack([message], reason="out of stock")
        shop.later(HOUR_MS)
    assert dead(shop.store.path) == "out of stock"
    run("dlq", "show", shop.store.path, "g").expect(0, out="0: t, tried 3 times, out of stock")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a\n\x1b[31mb\x01c\x02\0", "a  [31mb c"), ("ü" * 40, "ü" * 32), ("x" + "€" * 40, "x" + "€" * 21), ("\udc80", ""),
        ("", ""), (KeyError(), "KeyError"), (Rude(), "Rude"), (None, ""), ("no room for the body", "no room for the body"),
    ],
)  # fmt: skip
def test_whatever_is_given_is_one_short_line(shop: Shop, given: Any, kept: str) -> None:
    shop.store.put("t", b"", queue=0)
    with shop.store.consumer("g", "t", max_retries=0) as consumer:
        (message,) = consumer.poll(1, timeout=0)
        with pytest.raises(ArgumentError, match="a text or an exception"):
            message.nack(reason=1)  # type: ignore[arg-type] # for the test
        message.nack(reason=given)
    shop.later(HOUR_MS)
    assert dead(shop.store.path) == (kept or None)
    shop.store.close()
    # It has its body.
    run("dlq", "replay", shop.store.path, "g", "--dry-run").expect(0)


def test_a_reason_makes_no_dead_letter_of_a_retry(shop: Shop) -> None:
    """The properties of a retry just fit without it."""
    shop.store.put("t", b"x", queue=0, properties={"p": "v" * 32_550})
    with shop.store.consumer("g", "t") as consumer:
        consumer.poll(1, timeout=0)[0].nack(reason="x" * 64)
        shop.later(HOUR_MS)
        (again,) = consumer.poll(1, timeout=0)
    assert (again.attempt, again.reason) == (2, "")


def fail(_message: object) -> None:
    raise ValueError("card declined")


def in_the_block(consumer: Any) -> None:
    with pytest.raises(ValueError, match="card declined"), consumer:
        for message in consumer:
            fail(message)


def in_run(consumer: Any) -> None:
    def handle(message: object) -> None:
        consumer.close()
        fail(message)

    with consumer:
        consumer.run(handle)


@pytest.mark.parametrize("way", [in_the_block, in_run])
def test_an_exception_says_why(tmp_path: Path, way: Callable[[Any], None]) -> None:
    with penstock.open(tmp_path / "s") as store:
        store.put("t", b"x", queue=0)
        way(store.consumer("g", "t", max_retries=0))
    with penstock.open(tmp_path / "s"):
        pass
    assert dead(tmp_path / "s") == CARD


def test_an_exception_of_a_task_says_why(tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.open(tmp_path / "s") as store:
            await store.put_many([Message("t", b"x", queue=0)])
            with pytest.raises(ValueError, match="card declined"):
                async with store.consumer("g", "t", max_retries=0) as consumer:
                    async for message in consumer:
                        fail(message)

    asyncio.run(work())
    assert dead(tmp_path / "s") == CARD


def test_a_reason_outlives_a_new_owner_of_the_queue(shop: Shop) -> None:
    shop.store.put_many([Message("t", b"x", queue=0)] * 2)
    with shop.store.consumer("g", "t", max_retries=0) as consumer:
        consumer.poll(1, timeout=0)[0].nack(reason="first")
    with shop.store.consumer("g", "t") as consumer:
        consumer.poll(1, timeout=0)[0].ack()
    shop.later(HOUR_MS)
    assert dead(shop.store.path) == "first"
