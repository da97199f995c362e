"""Prepared messages for asyncio."""

import asyncio
from pathlib import Path

import pytest

from penstock import aio
from penstock.aio.prepared import AsyncPrepared


def test_a_block_commits_and_an_exception_rolls_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            async with await store.prepare("orders", b"1", group="g", tag="t") as prepared:
                assert isinstance(prepared, AsyncPrepared)
                assert (await store.read("orders")).messages == []
            with pytest.raises(ValueError, match="no"):
                async with await store.prepare("orders", b"2", group="g"):
                    raise ValueError("no")
            receipt = await (await store.prepare("orders", b"3", group="g")).commit()
            assert receipt.queue_offset == 1
            await (await store.prepare("orders", b"4", group="g")).rollback()
            left = await store.prepare("orders", b"5", group="g")
            (shown,) = await store.prepared()
            assert shown.transaction_id == left.transaction_id
            found = await store.read("orders")
            assert [each.body for each in found.messages] == [b"1", b"3"]
            assert found.messages[0].all_properties["UNIQ_KEY"] == prepared.transaction_id

    asyncio.run(asyncio.wait_for(work(), 60))
