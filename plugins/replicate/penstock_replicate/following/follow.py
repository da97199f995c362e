"""`follow`: the public way to let a store follow a master."""

from pathlib import Path
from typing import Any

from penstock.files import Files
from penstock.format import arguments
from penstock.runtime.clock import Clock
from penstock_replicate.following.follower import LogFollower, OnStatus
from penstock_replicate.following.options import Address, FollowOptions, ProtocolChoice

_SILENCE_MS = 20_000


def follow(
    path: str | Path, master: str, *, protocol: ProtocolChoice = "auto", secret_file: str = "", tls_ca: str = "",
    tls_cert: str = "", tls_key: str = "", from_last_file: bool = False, remoting: str | None = None, cut: bool = False,
    full_copy: bool = False, compress: bool = True, silence_ms: int = _SILENCE_MS,
    config: str | Path | None = None, on_status: OnStatus | None = None, files: Files | None = None,
    clock: Clock | None = None, **settings: Any,
) -> LogFollower:  # fmt: skip
    """Let the store at `path` follow a master, in a thread of its own; creates the store if there is none.

    The store is a follower from then on: it is opened with `read_only=True` by everybody else, until it is promoted.

    Args:
        path: the store's folder.
        master: HOST:PORT at which the master listens for copies; of a RocketMQ broker its haListenPort.
        protocol: "penstock", "rocketmq", or "auto" to find out.
        secret_file: a file with the secret that both sides must prove.
        tls_ca: a file with the certificate that signed the master's; turns TLS on.
        tls_cert: this side's certificate, if the master wants one; `tls_key` is its key.
        tls_key: see `tls_cert`.
        from_last_file: an empty log begins with the master's last file, not with its first. A RocketMQ master sends no more anyway.
        remoting: HOST:PORT of a RocketMQ master's remoting port, to be asked for offsets, topics and groups.
        cut: if the log here has bytes that the master's does not have, cut them off, and save them in `penstock/saved`.
        full_copy: if the log here cannot be continued, rename the folder, and copy the master anew.
        compress: take compressed data, if the master offers it.
        silence_ms: connect anew after the master has said nothing for so long.
        config: a TOML file, as for `penstock.open`.
        on_status: called once a second with a `ReplicaStatus`, in the follower's thread.
        files: the file system; tests pass one that injects faults.
        clock: the clock.
        settings: as for `penstock.open`.

    Raises:
        ArgumentError: an argument cannot be used.
        ConfigError: the secret, a certificate or a setting cannot be used.
        StoreLockedError: another process has the store open for writing.
    """
    root = arguments.folder("follow", "path", path)
    options = FollowOptions(
        master=Address.parse(master), protocol=protocol, secret_file=secret_file, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key,
        from_last_file=from_last_file, remoting=None if remoting is None else str(Address.parse(remoting, argument="remoting")),
        cut=cut, full_copy=full_copy, compress=compress, silence_ms=silence_ms, config=config, settings=settings,
    )  # fmt: skip
    return LogFollower(
        Path(root).absolute(), options, files or Files(), clock or Clock(), on_status
    )
