"""The options of `ha`."""

from typing import Any

import attrs
from attrs import validators

from penstock.contracts import MS_MAX, limits

_PORT_MAX = 65535
_DESK_PORT_MIN = 3


def split_listen(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [HOST]:PORT, where port 0 means any free one; raises `ValueError` if it is none."""
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= len(str(_PORT_MAX))
    if not (colon and host and is_number and int(port) <= _PORT_MAX):
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_address(_instance: object, field: "attrs.Attribute[Any]", value: str) -> None:
    try:
        split_listen(value)
    except ValueError as error:
        raise ValueError(f"{field.name} is {value!r}; it must be HOST:PORT") from error


def _is_desk(instance: object, field: "attrs.Attribute[Any]", value: str) -> None:
    if value:
        _is_address(instance, field, value)
        # Slaves ask two ports below it, too.
        if split_listen(value)[1] < _DESK_PORT_MIN:
            raise ValueError(
                f"{field.name} is {value!r}; its port must be {_DESK_PORT_MIN} or more"
            )


def _are_addresses(instance: object, field: "attrs.Attribute[Any]", value: list[str]) -> None:
    for each in value:
        _is_address(instance, field, each)


@attrs.frozen(kw_only=True)
class HaOptions:
    """Options of `ha`.

    Attributes:
        listen: HOST:PORT where copies connect. The default takes connections of this machine only; before it takes others, set
            `secret_file` and `tls_cert`: RocketMQ's protocol has no protection, whoever connects reads everything.
        in_sync_replicas: how many stores, this one included, must have a message before a put that waits returns. 1: no put waits.
        timeout_ms: how long such a put waits. A copy that is later is out of sync, and not waited for, until it has caught up.
        behind_bytes_max: a copy that is further behind is out of sync.
        secret_file: a file with a secret of 16 bytes or more that followers have, too. Refuses RocketMQ slaves, which have none.
        tls_cert: the certificate of this master, in PEM. With it every connection uses TLS, so RocketMQ slaves cannot connect.
        tls_key: its key, if it is not in the same file.
        tls_ca: the CA that must have signed the certificates of followers; without it they need none.
        mib_per_s: the most that is sent to all copies together, in MiB a second; 0: no limit.
        compress: `auto` compresses for Penstock followers where that is faster, `zlib` always, `none` never.
        heartbeat_ms: after this time without data a copy gets a heartbeat.
        silence_ms: after this time without a sign of life the connection of a copy is closed.
        chunk_bytes: how much a RocketMQ slave gets at once; more at once if a single record is larger.
        desk: HOST:PORT where RocketMQ slaves ask for what is beside the log; PORT - 2 is used as well. Empty: nowhere.
        name_servers: HOST:PORT of name servers that RocketMQ slaves find this master by.
        broker_name: the broker name that they know it by.
        cluster_name: the cluster name that they know it by.
        side_interval_ms: how often the files beside the log are looked at for changes.
    """

    listen: str = attrs.field(default="127.0.0.1:10912", validator=_is_address)
    in_sync_replicas: int = attrs.field(default=1, validator=limits(1, 64))
    timeout_ms: int = attrs.field(default=3000, validator=limits(1, MS_MAX))
    behind_bytes_max: int = attrs.field(default=256 << 20, validator=limits(0, 1 << 62))
    secret_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    mib_per_s: float = attrs.field(default=0.0, validator=limits(0, 1 << 20))
    compress: str = attrs.field(default="auto", validator=validators.in_(("auto", "none", "zlib")))
    heartbeat_ms: int = attrs.field(default=5000, validator=limits(10, MS_MAX))
    silence_ms: int = attrs.field(default=20_000, validator=limits(100, MS_MAX))
    chunk_bytes: int = attrs.field(default=32768, validator=limits(1024, (4 << 20) - 12))
    desk: str = attrs.field(default="", validator=_is_desk)
    name_servers: list[str] = attrs.field(factory=list, validator=_are_addresses)
    broker_name: str = "penstock"
    cluster_name: str = "DefaultCluster"
    side_interval_ms: int = attrs.field(default=1000, validator=limits(10, MS_MAX))

    def __attrs_post_init__(self) -> None:
        """Refuse name servers without a desk: they would lead slaves nowhere."""
        if self.name_servers and not self.desk:
            raise ValueError(
                "name_servers is set and desk is not; set desk, to which they lead RocketMQ slaves"
            )
