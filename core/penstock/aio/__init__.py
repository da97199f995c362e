"""Stores and consumers for asyncio.

>>> from penstock import aio
>>> async with aio.open("data") as store:
...     await store.put("orders", b"...")
...     async with store.consumer("billing", "orders") as consumer:
...         async for message in consumer:
...             await message.ack()

In reading order: `calls` (how a call that blocks is awaited, and one thread that waits for new messages), `consumer`,
`store` (with transactions and prepared messages).

Calls that only touch memory are made in the event loop, all others in a few threads that a store's calls share.
Cancelling a task never loses a message or an answer: a message that was on its way to a cancelled task is released, and
an acknowledgement, or the end of a transaction, that has begun is completed.
"""

from penstock.aio.consumer import AsyncConsumer, AsyncMessage
from penstock.aio.store import AsyncPrepared, AsyncStore, AsyncTransaction, open  # noqa: A004 - as `penstock.open`

__all__ = [
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncPrepared",
    "AsyncStore",
    "AsyncTransaction",
    "open",
]
