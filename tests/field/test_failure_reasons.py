"""Why a message was refused: its retries and its dead letter say so, after every way to refuse one."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.shop import Shop

import penstock
from penstock import ArgumentError, Message, aio
from penstock_tools.cli.root import run

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


def dead(path: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Return the reason of the only dead letter, as the command line shows it."""
    assert run(["dlq", "show", str(path), "g", "--json"]) == 0
    found: str | None = json.loads(capsys.readouterr().out)["reason"]
    return found


def test_the_retry_and_the_dead_letter_say_why(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
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
    assert dead(shop.store.path, capsys) == "out of stock"
    assert run(["dlq", "show", str(shop.store.path), "g"]) == 0
    assert "0: t, tried 3 times, out of stock" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a\n\x1b[31mb\x01c\x02\0", "a  [31mb c"), ("ü" * 40, "ü" * 32), ("x" + "€" * 40, "x" + "€" * 21), ("\udc80", ""),
        ("", ""), (KeyError(), "KeyError"), (Rude(), "Rude"), (None, ""), ("no room for the body", "no room for the body"),
    ],
)  # fmt: skip
def test_whatever_is_given_is_one_short_line(shop: Shop, given: Any, kept: str, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    shop.store.put("t", b"", queue=0)
    with shop.store.consumer("g", "t", max_retries=0) as consumer:
        (message,) = consumer.poll(1, timeout=0)
        with pytest.raises(ArgumentError, match="a text or an exception"):
            message.nack(reason=1)  # type: ignore[arg-type] # for the test
        message.nack(reason=given)
    shop.later(HOUR_MS)
    assert dead(shop.store.path, capsys) == (kept or None)
    shop.store.close()
    assert run(["dlq", "replay", str(shop.store.path), "g", "--dry-run"]) == 0, "it has its body"


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
def test_an_exception_says_why(tmp_path: Path, way: Callable[[Any], None], capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    with penstock.open(tmp_path / "s") as store:
        store.put("t", b"x", queue=0)
        way(store.consumer("g", "t", max_retries=0))
    with penstock.open(tmp_path / "s"):
        pass
    assert dead(tmp_path / "s", capsys) == CARD


def test_an_exception_of_a_task_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    async def work() -> None:
        async with aio.open(tmp_path / "s") as store:
            await store.put_many([Message("t", b"x", queue=0)])
            with pytest.raises(ValueError, match="card declined"):
                async with store.consumer("g", "t", max_retries=0) as consumer:
                    async for message in consumer:
                        fail(message)

    asyncio.run(work())
    assert dead(tmp_path / "s", capsys) == CARD


def test_a_reason_outlives_a_new_owner_of_the_queue(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    shop.store.put_many([Message("t", b"x", queue=0)] * 2)
    with shop.store.consumer("g", "t", max_retries=0) as consumer:
        consumer.poll(1, timeout=0)[0].nack(reason="first")
    with shop.store.consumer("g", "t") as consumer:
        consumer.poll(1, timeout=0)[0].ack()
    shop.later(HOUR_MS)
    assert dead(shop.store.path, capsys) == "first"
