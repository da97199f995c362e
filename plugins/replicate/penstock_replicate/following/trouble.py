"""What ends a connection to a master, but not the following: the next connection may do better."""

from penstock_replicate.following.channel import ConnectionLostError


class BadBytesError(ConnectionLostError):
    """The master sent bytes at a log offset that are no valid record there.

    They may have been changed on the way, so they are asked for again; if they come again and again, the logs differ.
    """

    def __init__(self, log_offset: int, reason: str) -> None:
        self.log_offset = log_offset
        super().__init__(f"what the master sent at log offset {log_offset} is not valid: {reason}")
