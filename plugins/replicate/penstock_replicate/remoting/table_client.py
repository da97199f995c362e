"""Asks a Java master for what travels beside the log, as its own slaves do.

The log comes over another connection, so what is asked for may be ahead of it: after the tables the master is asked where its log
ends, and a table is written when the follower has the log up to there (`beside.WaitingSides`).
"""

import attrs

from penstock_replicate.remoting.connection import RefusedRequestError, RemotingConnection
from penstock_replicate.remoting.remoting_frames import NOT_SUPPORTED, SYSTEM_ERROR
from penstock_replicate.remoting.tables import (
    BROKER_FIGURES,
    TABLE_REQUESTS,
    TIMER_CHECK,
    file_of,
    log_end_in,
)


@attrs.frozen(kw_only=True)
class MasterTables:
    """What a master has answered.

    Attributes:
        contents: of files, by name, as `beside.apply` takes them.
        log_end: where the master's log ended after that.
    """

    contents: dict[str, bytes]
    log_end: int


async def fetch_tables(peer: str, timeout_s: float = 5.0) -> MasterTables:
    """Return what a master has; a table that its version does not know is left out.

    Args:
        peer: HOST:PORT of the broker, its `listenPort`.
        timeout_s: of each request.

    Raises:
        OSError: it was not reached, refused a request, or gave an answer that is none of a master; nothing is known then.
        ValueError: `peer` is not HOST:PORT.
    """
    async with await RemotingConnection.open(peer, timeout_s) as connection:
        contents = {}
        for request in TABLE_REQUESTS:
            try:
                answer = await connection.request(request.code, timeout_s)
            except RefusedRequestError as error:
                # Of 4.x, and of a broker whose timers are off.
                if error.code == NOT_SUPPORTED or (request.code, error.code) == (TIMER_CHECK, SYSTEM_ERROR):  # fmt: skip
                    continue
                raise
            contents[request.name] = file_of(request, answer.body)
        # After the tables: the log that they speak of ends there or before.
        figures = await connection.request(BROKER_FIGURES, timeout_s)
        return MasterTables(contents=contents, log_end=log_end_in(figures.body))
