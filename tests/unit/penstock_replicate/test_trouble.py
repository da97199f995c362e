"""What ends a connection only."""

from penstock_replicate.following.channel import ConnectionLostError
from penstock_replicate.following.trouble import BadBytesError


def test_bad_bytes_end_a_connection_and_say_where() -> None:
    error = BadBytesError(4711, "its CRC is wrong")
    assert isinstance(error, ConnectionLostError)
    assert error.log_offset == 4711
    assert "4711" in str(error)
