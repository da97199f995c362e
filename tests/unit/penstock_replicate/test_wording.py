"""A status in one line."""

import attrs
import pytest

from penstock_replicate.roles.status_file import PeerStatus, ReplicaStatus
from penstock_replicate.roles.wording import bytes_text, copy_text, span_text, status_line

FOLLOWER = ReplicaStatus(
    role="follower", state="following", pid=7, time_ms=60_000, peer="10.0.0.2:10912", kind="penstock", epoch=1,
    end_offset=12_345, flushed_offset=12_000, master_offset=12_345, contact_ms=59_000,
)  # fmt: skip


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB"), (9 << 50, "9216.0 TiB")])  # fmt: skip
def test_bytes_have_a_unit(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(("span_ms", "text"), [(0, "0.0 s"), (59_900, "59.9 s"), (90_000, "1.5 min"), (5_400_000, "1.5 h"), (200_000_000, "2.3 days")])  # fmt: skip
def test_spans_have_a_unit(span_ms: int, text: str) -> None:
    assert span_text(span_ms) == text


def test_a_follower_says_whom_it_follows_and_how_far_it_is() -> None:
    assert status_line(FOLLOWER, 60_000) == (
        "follows 10.0.0.2:10912 (penstock), following, nothing behind, heard 1.0 s ago, log end 12,345, on disk 12,000, epoch 1"
    )
    late = attrs.evolve(FOLLOWER, kind=None, lag_bytes=2048, lag_ms=3000, contact_ms=0, last_error="no route")  # fmt: skip
    line = status_line(late, 60_000)
    assert "2.0 KiB and 3.0 s behind, never heard" in line
    assert line.endswith("last error: no route")


def test_a_master_says_how_far_its_copies_are() -> None:
    copy = PeerStatus(name="10.0.0.3:5", kind="rocketmq", received_offset=9, lag_bytes=1, lag_ms=100, in_sync=True)  # fmt: skip
    assert copy_text(copy) == "10.0.0.3:5 (rocketmq) at 9, 1 B and 0.1 s behind, in sync"
    master = attrs.evolve(FOLLOWER, role="master", state="listening", address="0.0.0.0:10912", copies=(copy,))  # fmt: skip
    assert status_line(master, 0).startswith("master at 0.0.0.0:10912, listening, log end 12,345")
    assert copy_text(copy) in status_line(master, 0)
    assert "no copy is connected" in status_line(attrs.evolve(master, copies=()), 0)
    head = status_line(master, 0, has_list=True)
    assert "copies: 1, 1 in sync" in head
    assert "no copy" not in head
