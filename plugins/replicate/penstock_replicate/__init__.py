"""Copies of a log that is being written: a master sends it to followers over TCP.

`follow` makes a folder a copy; the replicator `ha`, in the configuration of a store, lets it have copies. In reading
order: `wire` (frames), `secret` (who may connect), `peer` (what both ends have in common), `copies` (which stores have
how much), `beside` (the files beside the log), `master` and `follower` (the two ends of a connection), `rocketmq`
(those of RocketMQ's own protocol), `ha` (the replicator), `loop` and `serving` (threads and sockets of a master),
`line`, `remoting` (a broker's answers) and `following` (those of a follower), `commands` (the command line).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_replicate.following import StoreFollower, follow

__all__ = ["StoreFollower", "follow"]


def __getattr__(name: str) -> Any:
    # The plugin is loaded at every start.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock_replicate import following  # noqa: PLC0415 - see above

    return getattr(following, name)
