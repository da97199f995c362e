"""The first words on a connection: which protocol the master speaks; and what is asked of a RocketMQ master on its other port."""

import asyncio

from penstock.escape import get_logger
from penstock.files import Files
from penstock_replicate.following.channel import Channel, ConnectionLostError
from penstock_replicate.following.landing import Landing
from penstock_replicate.following.options import FollowOptions
from penstock_replicate.following.standing import Standing
from penstock_replicate.remoting.table_client import fetch_tables
from penstock_replicate.wire.limits import WireViolation
from penstock_replicate.wire.plain import ASKS_FOR_PENSTOCK, ChunkDecoder, encode_report
from penstock_replicate.wire.proof import read_secret
from penstock_replicate.wire.tls import client_context

logger = get_logger(__name__)

# A Penstock master answers at once; a RocketMQ master never does.
GREETING_S = 3.0
# From one that is known to be Penstock: it may be busy.
KNOWN_GREETING_S = 20.0
# As a RocketMQ slave of version 4 asks; one of version 5 asks every minute.
TABLES_S = 10.0
FIRST_TABLES_S = 0.5


class Greeter:
    """Finds out what a master speaks. Raises `ConfigError` when it is made, if secret or certificates cannot be used."""

    def __init__(self, options: FollowOptions, files: Files) -> None:
        self._options = options
        self.secret = read_secret(files, options.secret_file)
        self.tls = client_context(options.tls_cert, options.tls_key, options.tls_ca)

    @property
    def _advice(self) -> str:
        """What may be wrong with a master that closes the connection at once."""
        tls = "it may want TLS (tls_ca); look" if self.tls is None else "look"
        return f"check the address; {tls} into its log"

    async def greet(self, channel: Channel, *, knows_penstock: bool) -> tuple[bytes, bytes] | None:
        """Return a Penstock master's first frame and the bytes after it; None if the master is RocketMQ."""
        if self._options.protocol == "rocketmq":
            return None
        channel.send(encode_report(ASKS_FOR_PENSTOCK))
        must_be = knows_penstock or not self._options.may_be_rocketmq
        decoder = ChunkDecoder()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (KNOWN_GREETING_S if must_be else GREETING_S)
        while decoder.hello is None:
            left = deadline - loop.time()
            try:
                data = await channel.receive(max(left, 0))
            except ConnectionLostError as error:
                raise ConnectionLostError(f"{error} without an answer; {self._advice}") from error
            if not data and left <= 0:
                if must_be:
                    raise ConnectionLostError(
                        "the master does not answer as a Penstock master does"
                    )
                return None
            try:
                if any(True for _ in decoder.chunks(data)):
                    raise ConnectionLostError(
                        "the master sends bytes of the log before they are asked for"
                    )
            except WireViolation as error:
                raise ConnectionLostError(f"the master breaks the protocol: {error}") from error
        return decoder.hello, decoder.rest


class RemoteTables:
    """Asks a RocketMQ master, on its remoting port, for what travels beside the log, and for the end of its log."""

    def __init__(self, peer: str, landing: Landing, standing: Standing) -> None:
        self._peer = peer
        self._landing = landing
        self._standing = standing

    async def fetch_forever(self) -> None:
        """Ask again and again; what fails is noted, and tried again."""
        await asyncio.sleep(FIRST_TABLES_S)
        while True:
            try:
                tables = await fetch_tables(self._peer)
            except OSError as error:
                self._standing.last_error = f"{self._peer} gives no tables: {error}"
                logger.info("%s", self._standing.last_error)
            else:
                self._standing.heard(tables.log_end)
                for name, data in tables.contents.items():
                    self._landing.take_file(name, data, tables.log_end)
            await asyncio.sleep(TABLES_S)
