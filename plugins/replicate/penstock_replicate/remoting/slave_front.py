"""What RocketMQ slaves of our master need besides the log: a desk to ask, and name servers that lead them there."""

from collections.abc import Callable, Mapping, Sequence

from penstock_replicate.remoting.connection import split_address
from penstock_replicate.remoting.desk import Desk
from penstock_replicate.remoting.registration import INTERVAL_S, BrokerNames, Registration

_EVERYWHERE = ("0.0.0.0", "::")


class SlaveFront:
    """The desk and the registration of one master. Used in one event loop.

    Args:
        desk: HOST:PORT of the desk, as slaves reach it.
        contents: returns the files beside the log by name, as `beside.SideReader.contents`.
        name_servers: HOST:PORT of each; may be empty.
        broker: the broker name.
        cluster: the cluster name.
    """

    def __init__(
        self,
        desk: str,
        contents: Callable[[], Mapping[str, bytes]],
        *,
        name_servers: Sequence[str] = (),
        broker: str,
        cluster: str,
    ) -> None:
        self._address = desk
        self._desk = Desk(desk, contents)
        self._name_servers, self._broker, self._cluster = name_servers, broker, cluster
        self._registration: Registration | None = None

    async def start(self, ha_address: str) -> None:
        """Listen, and register; raises `OSError` if a port is taken.

        Args:
            ha_address: HOST:PORT where the master sends its log; with a host that stands for all of a machine, slaves are told the
                desk's host.
        """
        await self._desk.start()
        if not self._name_servers:
            return
        names = BrokerNames(
            broker=self._broker, cluster=self._cluster, address=self._address,
            ha_address=reachable(ha_address, self._address),
        )  # fmt: skip
        self._registration = Registration(self._name_servers, names, INTERVAL_S)
        self._registration.start()

    async def close(self) -> None:
        """Unregister, and listen no more."""
        if self._registration is not None:
            await self._registration.close()
        await self._desk.close()

    def stats(self) -> dict[str, int]:
        """Return figures for `Store.stats()`."""
        troubles = 0 if self._registration is None else len(self._registration.troubles)
        return {"answered": self._desk.answered, "name_servers_failed": troubles}


def reachable(address: str, other: str) -> str:
    """Return an address, with the host of another one if its own stands for all of a machine."""
    host, port = split_address(address)
    if host not in _EVERYWHERE:
        return address
    return f"{other.rpartition(':')[0]}:{port}"
