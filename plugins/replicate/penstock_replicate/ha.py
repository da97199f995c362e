"""The replicator `ha`: serves followers over TCP, and lets puts wait for them."""

from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from penstock.contracts import MS_MAX, Context, ReplicatedLog, Replicator, limits
from penstock.errors import ConfigError
from penstock_replicate.wire import host_and_port

if TYPE_CHECKING:
    from penstock_replicate.serving import Server


def _listens(_instance: object, field: "attrs.Attribute[Any]", value: str) -> None:
    try:
        host_and_port(value)
    except ValueError as error:
        raise ValueError(f"{field.name}: {error}") from error


@attrs.frozen(kw_only=True)
class HaOptions:
    """Options of the replicator `ha`.

    Attributes:
        listen: "HOST:PORT" for followers; port 0 lets the system choose one, which the store's status tells. Whoever
            can connect can read the log, and say that he has it.
        in_sync_replicas: how many stores must have a message before a put with `wait=True` is told so, this one
            included; 1: no put waits.
        wait_for: "disk", each of them has synced it, or "received". None: "disk" if the flush policy waits.
        timeout_ms: how long a put waits for them before its receipt says `FLUSH_SLAVE_TIMEOUT`.
        heartbeat_ms: how often both sides say how far they are. A copy is in sync if it has what was visible then.
        silence_ms: a connection on which nothing comes for so long is closed.
        connections_max: further connections are refused.
        secret_file: a file with a secret of 16 to 4,096 bytes; followers that do not know it are refused. None: no
            secret.
        tls_cert: the master's certificate, a PEM file; connections are encrypted then. None: they are not.
        tls_key: the key of that certificate, a PEM file. None: it is in `tls_cert`.
        rocketmq_slaves: slaves of RocketMQ are served, too. They count as "received" only, and one for each host.
    """

    listen: str = attrs.field(default="127.0.0.1:10912", validator=_listens)
    in_sync_replicas: int = attrs.field(default=1, validator=limits(1, 16))
    wait_for: str | None = attrs.field(
        default=None, validator=attrs.validators.in_((None, "disk", "received"))
    )
    timeout_ms: int = attrs.field(default=3000, validator=limits(1, MS_MAX))
    heartbeat_ms: int = attrs.field(default=1000, validator=limits(10, 3000))
    silence_ms: int = attrs.field(default=10_000, validator=limits(3000, MS_MAX))
    connections_max: int = attrs.field(default=16, validator=limits(1, 1024))
    secret_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    rocketmq_slaves: bool = False


class HaReplicator(Replicator):
    """Copies the log to the followers that connect. Safe from any thread."""

    name: ClassVar[str] = "ha"
    Options: ClassVar[type] = HaOptions

    def __init__(self, options: HaOptions, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context, log)
        self.waits = options.in_sync_replicas > 1
        self.wait_for = options.wait_for or ("disk" if log.puts_wait else "received")
        self.timeout_ms = options.timeout_ms
        self._server: Server | None = None

    def start(self) -> None:
        # asyncio and ssl are slow to import.
        from penstock_replicate.secret import master_tls, read_key  # noqa: PLC0415
        from penstock_replicate.serving import Server  # noqa: PLC0415

        options = self.options
        if options.rocketmq_slaves and (options.secret_file or options.tls_cert):
            what = "replicate.ha.rocketmq_slaves is true"
            raise ConfigError(
                f"{what}, and no such slave knows a secret or TLS: leave out secret_file and tls_cert"
            )
        if options.tls_key and not options.tls_cert:
            raise ConfigError("replicate.ha.tls_key needs replicate.ha.tls_cert")
        try:
            key = None if options.secret_file is None else read_key(options.secret_file)
            tls = (
                None if options.tls_cert is None else master_tls(options.tls_cert, options.tls_key)
            )
        except (OSError, ValueError) as error:
            files = "replicate.ha.secret_file, tls_cert or tls_key"
            raise ConfigError(f"{files} names a file that cannot be used: {error}") from error
        server = Server(options, self.context, self.log, self.wait_for, key, tls)
        try:
            server.start()
        except (OSError, ValueError) as error:
            # A name of a host that cannot be is no OSError.
            server.close()
            raise ConfigError(
                f"replicate.ha.listen is {self.options.listen!r}, where this machine cannot listen: {error}"
            ) from error
        self._server = server

    def advanced(self) -> None:
        if self._server is not None:
            self._server.advanced()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
