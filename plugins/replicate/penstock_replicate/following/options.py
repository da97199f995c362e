"""How a follower follows: the arguments of `follow`, checked once."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from penstock.errors import ArgumentError

ProtocolChoice = Literal["auto", "penstock", "rocketmq"]
PROTOCOLS = ("auto", "penstock", "rocketmq")
_PORT_MAX = 65535


@attrs.frozen
class Address:
    """Where a master listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_this_machine(self) -> bool:
        """Whether what is sent there goes over no network."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @classmethod
    def parse(cls, text: object, call: str = "follow", argument: str = "master") -> "Address":
        """Return the address in a text such as `10.0.0.2:10912` or `[::1]:10912`."""
        host, colon, port = str(text).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_number = port.isascii() and port.isdigit() and len(port) < 6  # noqa: PLR2004 - digits of a port
        if not (colon and host and is_number and 0 < int(port) <= _PORT_MAX):
            raise ArgumentError(call, argument, text, "HOST:PORT, for example 10.0.0.2:10912")
        return cls(host, int(port))


@attrs.frozen(kw_only=True)
class FollowOptions:
    """The arguments of `follow`; it says what they mean."""

    master: Address
    protocol: ProtocolChoice = "auto"
    secret_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    from_last_file: bool = False
    remoting: str | None = None
    cut: bool = False
    full_copy: bool = False
    compress: bool = True
    silence_ms: int = 20_000
    config: Any = None
    settings: Mapping[str, Any] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.protocol not in PROTOCOLS:
            expected = f"one of {', '.join(PROTOCOLS)}"
            raise ArgumentError("follow", "protocol", self.protocol, expected)
        if self.protocol == "rocketmq" and (self.secret_file or self.tls_ca):
            expected = "auto or penstock with a secret or TLS, which RocketMQ does not have"
            raise ArgumentError("follow", "protocol", self.protocol, expected)
        if self.cut and self.full_copy:
            expected = "False with full_copy=True, which keeps nothing that could be cut"
            raise ArgumentError("follow", "cut", self.cut, expected)

    @property
    def may_be_rocketmq(self) -> bool:
        """Whether the master may be RocketMQ: not where a secret or TLS is asked for."""
        return self.protocol != "penstock" and not self.secret_file and not self.tls_ca
