from pathlib import Path

from tests.ha_peers import MemoryLog, context_of

from penstock_replicate.master.copies import CAUGHT_UP_BYTES, ENDED_MAX, CopyPeer, CopyTable


def made(
    root: Path, *received: int, behind: int = 1 << 30
) -> tuple[MemoryLog, CopyTable, list[CopyPeer]]:
    log = MemoryLog(root)
    log.put(1000, 10)
    table = CopyTable(log, context_of(root), behind)
    peers = [CopyPeer(f"h:{number}", 0, kind="penstock") for number in range(len(received))]
    for peer, offset in zip(peers, received, strict=True):
        table.add(peer)
        table.begin(peer, offset)
    return log, table, peers


def in_sync_after(table: CopyTable, peer: CopyPeer, *ends: int) -> list[bool]:
    """Return whether a copy is in sync, now and after each acknowledgement."""
    found = [peer.in_sync]
    for end in ends:
        table.acknowledge(peer, end, None)
        found.append(peer.in_sync)
    return found


def test_a_new_copy_is_in_sync_once_it_has_what_was_there(tmp_path: Path) -> None:
    _, table, (peer,) = made(tmp_path, 5000)
    assert in_sync_after(table, peer, 9000, 10_000) == [False, False, True]
    assert table.in_sync_count == 1


def test_what_as_many_copies_have_is_known(tmp_path: Path) -> None:
    _, table, (first, second, third) = made(tmp_path, 5000, 7000, 9000)
    first.flushed, second.flushed = 4000, 6000
    assert table.reached(1) == (9000, 6000)
    assert table.reached(2) == (7000, 4000)
    assert table.reached(3) == (5000, -1)
    assert table.reached(4) == (-1, -1)
    table.remove(third, None)
    assert table.reached(1) == (7000, 6000)


def test_a_miss_is_over_when_the_copy_has_caught_up(tmp_path: Path) -> None:
    log, table, (peer,) = made(tmp_path, 10_000)
    end = log.put(1000, 3)
    table.miss(end - 1000)
    assert in_sync_after(table, peer, end - 2000, end - 1000) == [False, False, True]


def test_what_was_not_visible_is_no_fault_of_a_copy(tmp_path: Path) -> None:
    log, table, (peer,) = made(tmp_path, 10_000)
    table.miss(log.visible_offset + 5)
    assert peer.in_sync


def test_a_copy_far_behind_is_out_of_sync(tmp_path: Path) -> None:
    log, table, (peer,) = made(tmp_path, 10_000, behind=CAUGHT_UP_BYTES * 2)
    end = log.put(50_000, 20)
    table.refresh()
    nearly, enough = end - CAUGHT_UP_BYTES - 1, end - CAUGHT_UP_BYTES
    assert in_sync_after(table, peer, nearly, enough) == [False, False, True]


def test_ended_connections_are_listed_with_their_error_until_the_host_is_back(
    tmp_path: Path,
) -> None:
    _, table, (peer,) = made(tmp_path, 10_000)
    table.remove(peer, "it fell")
    (state,) = table.states()
    assert (state.name, state.last_error, state.in_sync) == ("h:0", "it fell", False)
    again = CopyPeer("h:99", 0, kind="penstock")
    table.add(again)
    table.begin(again, 10_000)
    assert [state.name for state in table.states()] == ["h:99"]
    for number in range(20):
        one = CopyPeer(f"other:{number}", 0, kind="rocketmq")
        table.add(one)
        table.remove(one, "refused")
    assert len(table.states()) == 1 + ENDED_MAX


def test_are_complete_asks_those_that_are_sent_the_log(tmp_path: Path) -> None:
    log, table, (first, _) = made(tmp_path, 10_000, 9000)
    table.add(CopyPeer("silent:1", 0))
    assert not table.are_complete(log.visible_offset)
    assert table.are_complete(9000)
    assert first.host == "h"
