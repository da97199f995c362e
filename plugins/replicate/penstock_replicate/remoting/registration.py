"""Tells name servers where the master is, so that Java slaves of the same broker name find it.

A name server forgets a broker that it has not heard of for 120 s, or whose connection is closed. So one connection to each is kept; each
is told every 30 s, and when the master closes. No topics are told: clients of the cluster must not come to the desk, which has no messages for them.
"""

import asyncio
import json
import zlib
from collections.abc import Sequence

import attrs

from penstock.escape import get_logger
from penstock_replicate.remoting.connection import RemotingConnection

logger = get_logger(__name__)

REGISTER, UNREGISTER = 103, 104
INTERVAL_S = 30.0
_TIMEOUT_S = 3.0
_MASTER_ID = "0"
_BODY = json.dumps(
    {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "topicConfigTable": {},
        },
    },
    separators=(",", ":"),
).encode()


@attrs.frozen(kw_only=True)
class BrokerNames:
    """What name servers know a master by.

    Attributes:
        broker: the broker name, which its slaves have, too.
        cluster: the cluster name.
        address: HOST:PORT of the desk, as slaves reach it.
        ha_address: HOST:PORT where the log is sent, as slaves reach it.
    """

    broker: str
    cluster: str
    address: str
    ha_address: str

    def fields(self) -> dict[str, str]:
        """Return the fields that both requests have."""
        return {
            "brokerName": self.broker, "brokerAddr": self.address, "clusterName": self.cluster, "brokerId": _MASTER_ID,
        }  # fmt: skip


class Registration:
    """Keeps a master registered. Used in one event loop.

    Args:
        name_servers: HOST:PORT of each.
        names: of the master.
        interval_s: how often each name server is told.

    Attributes:
        troubles: why the last request failed, by name server; without those that took it.
    """

    def __init__(
        self, name_servers: Sequence[str], names: BrokerNames, interval_s: float = INTERVAL_S
    ) -> None:
        self._name_servers, self._names = tuple(name_servers), names
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._connections: dict[str, RemotingConnection] = {}
        self.troubles: dict[str, str] = {}

    def start(self) -> None:
        """Register now, and again at each interval."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Unregister; a name server that cannot be reached forgets the master by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if not self._connections:
            return
        await self._tell_all(UNREGISTER, self._names.fields(), b"")
        await asyncio.gather(*(self._drop(each) for each in self._name_servers))

    async def _run(self) -> None:
        while True:
            await self.register()
            await asyncio.sleep(self._interval_s)

    async def register(self) -> None:
        """Tell all name servers; does not raise: see `troubles`."""
        fields = {
            **self._names.fields(), "haServerAddr": self._names.ha_address, "compressed": "false",
            "bodyCrc32": str(zlib.crc32(_BODY) & 0x7FFFFFFF), "enableActingMaster": "false",
        }  # fmt: skip
        await self._tell_all(REGISTER, fields, _BODY)

    async def _tell_all(self, code: int, fields: dict[str, str], body: bytes) -> None:
        # At the same time: one that does not answer keeps none of the others waiting.
        await asyncio.gather(*(self._tell(each, code, fields, body) for each in self._name_servers))

    async def _tell(self, name_server: str, code: int, fields: dict[str, str], body: bytes) -> None:
        try:
            connection = self._connections.get(name_server)
            if connection is None:
                connection = await RemotingConnection.open(name_server, _TIMEOUT_S)
                self._connections[name_server] = connection
            await connection.request(code, _TIMEOUT_S, fields=fields, body=body)
        except (OSError, ValueError) as error:
            await self._drop(name_server)
            if str(error) != self.troubles.get(name_server):
                self.troubles[name_server] = str(error)
                logger.warning("the name server %s does not know of this master: %s; it is tried again", name_server, error)  # fmt: skip
        else:
            self.troubles.pop(name_server, None)

    async def _drop(self, name_server: str) -> None:
        connection = self._connections.pop(name_server, None)
        if connection is not None:
            await connection.close()
