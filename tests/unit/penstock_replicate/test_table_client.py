"""A master is asked for its tables first, and where its log ends after that."""

import asyncio

import pytest
from tests.unit.penstock_replicate.test_connection import serving

from penstock_replicate.beside.side_names import SIDE_NAMES
from penstock_replicate.remoting.connection import RefusedRequestError
from penstock_replicate.remoting.remoting_frames import RemotingError, RemotingFrame
from penstock_replicate.remoting.table_client import MasterTables, fetch_tables
from penstock_replicate.remoting.tables import BROKER_FIGURES, TIMER_CHECK, answer_to

CONTENTS = {"config/timercheck": bytes(4096)}


def fetched(odd: dict[int, tuple[int, bytes]]) -> MasterTables:
    asked: list[int] = []

    async def answering(frame: RemotingFrame, writer: asyncio.StreamWriter) -> None:
        asked.append(frame.code)
        code, body = odd.get(frame.code, (0, answer_to(frame.code, CONTENTS) or b""))
        if frame.code == BROKER_FIGURES and frame.code not in odd:
            body = b'{"table":{"commitLogMaxOffset":"%d"}}' % len(asked)
        writer.write(frame.answer(code, body=body).encode())

    async def story() -> MasterTables:
        async with serving(answering) as address:
            return await fetch_tables(address)

    return asyncio.run(story())


def test_all_tables_come_before_the_end_of_the_log() -> None:
    found = fetched({})
    assert set(found.contents) == {name for name in SIDE_NAMES if name.startswith("config/")}
    assert found.log_end == 6, "it is asked for last"


def test_what_a_version_does_not_know_is_left_out() -> None:
    for code in (3, 1):
        found = fetched({TIMER_CHECK: (code, b"")})
        assert "config/timercheck" not in found.contents
        assert len(found.contents) == 4


@pytest.mark.parametrize("odd", [{21: (1, b"")}, {BROKER_FIGURES: (3, b"")}])
def test_a_refusal_is_an_error(odd: dict[int, tuple[int, bytes]]) -> None:
    with pytest.raises(RefusedRequestError):
        fetched(odd)


@pytest.mark.parametrize("odd", [{21: (0, b"{}")}, {BROKER_FIGURES: (0, b"{}")}])
def test_an_answer_that_is_none_is_an_error(odd: dict[int, tuple[int, bytes]]) -> None:
    with pytest.raises(RemotingError):
        fetched(odd)
