"""`pip install penstock`: put, read, find, follow, consume in Python; every other part names the extra that it needs."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import penstock
from penstock import aio
from penstock.errors import MissingExtraError


def lacks(extra: str, call: Callable[[], object]) -> None:
    """Check that a call names the extra that it needs."""
    named = ""
    try:
        call()
    except MissingExtraError as error:
        named = str(error)
    assert f"pip install 'penstock[{extra}]'" in named, f"[{extra}] should be named: {named}"


def archiving() -> None:
    """Open a store that archives what it deletes."""
    with penstock.open("archived", retention=["archive"], environ={}):
        pass


def suite() -> object:
    """Import a contract suite."""
    from penstock.testing import FlushPolicyContract  # noqa: PLC0415 - asked for here

    return FlushPolicyContract


def session() -> None:
    """Start Spark."""
    from penstock_spark import local_session  # noqa: PLC0415 - asked for here

    local_session()


async def consume() -> None:
    """Consume with asyncio what another group has consumed already."""
    async with (
        await aio.open("data", environ={}) as opened,
        await opened.consumer("audit", "orders") as group,
    ):
        found = await group.poll(limit=10, timeout=60)
        await group.ack(found)
        assert [each.body for each in found] == [b"two boxes of pears"]


with penstock.open("data", flush="sync", environ={}) as store:
    receipt = store.put("orders", b"two boxes of pears", queue=0, tag="created", keys=["A-17"])
    assert receipt.durability is penstock.Durability.ON_DISK
    assert [each.body for each in store.find("A-17", "orders")] == [b"two boxes of pears"]
    found = store.read("orders", queue=0, offset=0, tag="created || paid")
    assert [each.body for each in found.messages] == [b"two boxes of pears"]
    assert [each.body for each in store.scan("orders", queue=0)] == [b"two boxes of pears"]
    with store.consumer("billing", "orders", max_retries=0) as consumer:
        (message,) = consumer.poll(limit=10, timeout=60)
        message.ack()
        assert not any(each.lag for each in consumer.lag())
    assert list(store.topic_configs(system=True)) == ["%RETRY%billing", "orders"]
    lacks("arrow", lambda: store.to_arrow("orders"))
    lacks("arrow", lambda: store.to_reader(["orders"]))
    lacks("arrow", lambda: store.put_arrow(None))
asyncio.run(consume())
lacks("arrow", archiving)
lacks("testing", suite)
lacks("spark", session)

for command in (
    [sys.executable, "-m", "penstock", "--version"],
    [sys.executable, "-m", "penstock", "stat", "data"],
):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert (
        done.stderr
        == "the penstock command needs click; install it with: pip install 'penstock[cli]'\n"
    )
assert not Path("archived").exists() or not any(Path("archived").rglob("commitlog/*"))
