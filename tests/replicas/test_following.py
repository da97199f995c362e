"""What a master and a follower say to each other, one step at a time."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import attrs
import pytest
from tests.replicas.fakes import HISTORY, SEGMENT, FakeLog, data_frame, store_id

from penstock.contracts import Epoch, FollowBegin, Replica
from penstock_replicate import wire
from penstock_replicate.copies import Copies
from penstock_replicate.follower import FollowerPeer, Mine, parting
from penstock_replicate.master import GREETING_MS, MasterPeer
from penstock_replicate.peer import Accept, Action, Close, Feed, Hash, Read, ReadRanges, Send
from penstock_replicate.secret import Secret

M, F, G, FRESH = (store_id(number) for number in (1, 2, 3, 9))
HEARTBEAT_MS, SILENCE_MS = 1000, 10_000
TIMES: dict[str, Any] = {"heartbeat_ms": HEARTBEAT_MS, "silence_ms": SILENCE_MS, "now_ms": 0}
FIRST = Epoch(1, 0, 0, M)
NEW = Mine(master="m:1", replica=None, fresh_store=FRESH)
COPY = Replica(history=HISTORY, store=F, role="follower", epochs=(FIRST,))
BYTES = bytes(range(256)) * 32


def mine(data: bytes = BYTES[:5000], **changes: Any) -> Mine:
    """Return a copy of the first bytes of a log."""
    facts = {"master": "m:1", "replica": COPY, "fresh_store": FRESH, "segment_bytes": SEGMENT, "end_offset": len(data)}  # fmt: skip
    return Mine(**{**facts, **changes})


def hello(**changes: Any) -> bytes:
    """Return what a side says of itself, a copy of 5000 bytes."""
    facts = {
        "version": 1, "history": HISTORY, "store": F, "segment_bytes": SEGMENT, "min": 0, "end": 5000, "epochs": [],
        "nonce": None, "proof": None,
    }  # fmt: skip
    return wire.control("hello", **{**facts, **changes})


class Pair:
    """A master and a follower, each with a secret or none, whose actions are carried out at once."""

    def __init__(
        self, log: FakeLog, mine: Mine, data: bytes = BYTES, keys: tuple[bytes | None, ...] = (None, None)
    ) -> None:  # fmt: skip
        ours, theirs = (None if key is None else Secret(key) for key in keys)
        self.log, self.data = log, data
        self.copies = Copies(log, needed=1, wait_for="disk", timeout_ms=3000, heartbeat_ms=HEARTBEAT_MS, now_ms=0)  # fmt: skip
        self.master = MasterPeer(log, self.copies, "f:1", secret=ours, **TIMES)
        self.follower = FollowerPeer(mine, secret=theirs, **TIMES)
        self.done: list[Action] = []

    def by_master(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.done.append(action)
            match action:
                case Send(data):
                    self.by_follower(self.follower.take(data))
                case Read(log_offset, size):
                    self.by_master(self.master.read_done(self.log.read(log_offset, size)))
                case ReadRanges():
                    self.by_master(self.master.ranges_done(self.log.ranges()))
                case Hash(start, stop):
                    digest = sha256(self.log.data[start:stop]).digest()
                    self.by_master(self.master.hashed(start, stop, digest))

    def by_follower(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.done.append(action)
            match action:
                case Send(data):
                    self.by_master(self.master.take(data))
                case Hash(start, stop):
                    digest = sha256(self.data[start:stop]).digest()
                    self.by_follower(self.follower.hashed(start, stop, digest))

    def meet(self) -> list[Action]:
        """Return what was done about the store and the connection."""
        self.by_follower(self.follower.start())
        return [action for action in self.done if isinstance(action, Accept | Feed | Close)]

    def ends(self) -> list[Close]:
        """Return how it ended: on the side that closed first, and on the other one."""
        return [action for action in self.meet() if isinstance(action, Close)]


def greet(pair: Pair) -> None:
    """Let a follower hear what the master says of itself, and lose what the follower answers."""
    (said,) = pair.master.take(wire.FIRST_REPORT)
    assert isinstance(said, Send)
    pair.follower.take(said.data)


def closed(actions: Sequence[Action]) -> Close:
    """Return the last of some actions, a `Close`."""
    end = actions[-1]
    assert isinstance(end, Close)
    return end


def accepted(store: str = F, epochs: tuple[Epoch, ...] = (FIRST,), begin: FollowBegin | None = None) -> Accept:  # fmt: skip
    """Return what a master's acceptance makes of a store."""
    replica = Replica(
        history=HISTORY, store=store, role="follower", master="m:1", protocol="penstock", epochs=epochs
    )  # fmt: skip
    return Accept(replica=replica, ranges={"ranges": []}, begin=begin)


def test_a_new_copy_begins_where_the_masters_log_does() -> None:
    pair = Pair(FakeLog(bytes(SEGMENT) + BYTES, min_offset=SEGMENT), NEW)
    accept, *feeds = pair.meet()
    assert accept == accepted(FRESH, begin=FollowBegin(segment_bytes=SEGMENT, log_offset=SEGMENT))
    assert b"".join(feed.data for feed in feeds if isinstance(feed, Feed)) == BYTES
    # What it is told of the master's end may fall.
    for visible in (1 << 61, SEGMENT):
        pair.by_follower(pair.follower.take(wire.heartbeat_frame(visible)))
    assert (pair.follower.master_visible, pair.follower.heartbeats) == (SEGMENT, 3)
    assert not [action for action in pair.done if isinstance(action, Close)]


TWO = (FIRST, Epoch(1, 1, 4000, M))


@pytest.mark.parametrize(
    ("copy", "store", "epochs", "begin"),
    [
        (mine(), F, (FIRST,), 5000),
        # A folder that was copied: both had one id, so that two such copies ended each other's connections.
        (mine(replica=attrs.evolve(COPY, store=M, role="master")), FRESH, (FIRST,), 5000),
        # Without records, whatever it was.
        (mine(b"", replica=attrs.evolve(COPY, history="f" * 32)), F, (FIRST,), 0),
        # It ends where the new epoch begins.
        (mine(BYTES[:4000]), F, TWO, 4000),
    ],
)
def test_a_copy_goes_on_where_it_ends(copy: Mine, store: str, epochs: tuple[Epoch, ...], begin: int) -> None:  # fmt: skip
    accept, first, *_ = Pair(FakeLog(BYTES, epochs=epochs), copy).meet()
    assert accept == accepted(store, epochs)
    assert first == Feed(begin, BYTES[begin : begin - begin % SEGMENT + SEGMENT])


def test_only_acknowledgements_after_it_was_accepted_count() -> None:
    pair = Pair(FakeLog(BYTES), mine())
    pair.log.put(b"x")
    pair.meet()
    assert (pair.log.reached, pair.log.available) == (0, False)
    pair.by_follower(pair.follower.landed(8193, 8193))
    assert pair.log.reached == 8193
    # A new copy has nothing of what comes before its begin.
    pair = Pair(FakeLog(), NEW)
    pair.log.put(BYTES)
    pair.log.min_offset = SEGMENT
    pair.meet()
    pair.by_follower(pair.follower.landed(8192, 8192))
    assert pair.log.reached == 0


@pytest.mark.parametrize("acked", [(8193, 6000), (8100, 8101), (7000, 6000), (8000, 4999)])
def test_an_acknowledgement_of_what_was_not_sent_ends_the_connection(acked: tuple[int, int]) -> None:  # fmt: skip
    pair = Pair(FakeLog(BYTES), mine())
    pair.meet()
    pair.by_follower(pair.follower.landed(8000, 5000))
    end = closed(pair.master.take(wire.ack_frame(*acked)))
    assert "acknowledgement" in end.reason
    assert pair.copies.status()[0]["last_error"] == end.reason


@pytest.mark.parametrize(
    ("copy", "word"),
    [
        (mine(replica=None), "not copies"),
        (mine(replica=attrs.evolve(COPY, history="f" * 32)), "not copies"),
        (mine(segment_bytes=2 * SEGMENT), "segments"),
        (mine(b"", segment_bytes=2 * SEGMENT), "segments"),
        (mine(replica=attrs.evolve(COPY, epochs=(FIRST, Epoch(2, 0, 900, F)))), "epoch"),
    ],
)  # fmt: skip
def test_a_store_that_cannot_be_a_copy_is_refused_for_good_and_both_know_why(copy: Mine, word: str) -> None:  # fmt: skip
    pair = Pair(FakeLog(BYTES), copy)
    ends = pair.ends()
    assert all(word in end.reason for end in ends)
    assert any(end.is_final for end in ends)
    assert pair.meet() == ends
    assert pair.copies.status()[0]["store"] in (F, FRESH)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"history": "f" * 32}, "not copies"),
        ({"history": None}, "not copies"),
        ({"segment_bytes": 8192}, "8192"),
        ({"epochs": [(2, 0, 900, F)]}, "no longer the master"),
        # What is not there yet.
        ({"end": 9000}, "9000"),
    ],
)  # fmt: skip
def test_a_master_refuses_what_cannot_be_right(changes: dict[str, Any], word: str) -> None:
    pair = Pair(FakeLog(BYTES), NEW)
    pair.master.take(wire.FIRST_REPORT)
    actions = pair.master.take(hello(**changes) + wire.control("follow", log_offset=9000))
    assert word in closed(actions if "end" not in changes else pair.master.ranges_done({})).reason


@pytest.mark.parametrize(("copy", "needs_copy"), [(mine(BYTES[:4000]), True), (NEW, False)])
def test_retention_may_have_passed_a_copy(copy: Mine, needs_copy: bool) -> None:
    """A new copy begins at what it is told: if that is removed meanwhile, it asks again."""
    pair = Pair(FakeLog(BYTES, min_offset=SEGMENT), copy)
    take = pair.master.take

    def late(data: bytes | memoryview) -> list[Action]:
        pair.log.min_offset = 2 * SEGMENT if b"follow" in bytes(data) else pair.log.min_offset
        return take(data)

    pair.master.take = late  # type: ignore[method-assign] # between two frames
    end, _ = pair.ends()
    assert (end.needs_copy, end.is_final) == (needs_copy, needs_copy)
    assert "begins at 8192" in end.reason


ACCEPT = wire.control("accept", log_offset=0, ranges={})
# Else bytes would be appended at another offset than the master's.
MISPLACED = {
    "a log that begins elsewhere": wire.control("accept", log_offset=SEGMENT, ranges={}),
    "bytes before the master has accepted": data_frame(0, BYTES),
    "a gap": ACCEPT + data_frame(1, b"x"),
    "what was there": ACCEPT + data_frame(0, b"xy") + data_frame(1, b"y"),
}


@pytest.mark.parametrize("wrong", MISPLACED.values(), ids=MISPLACED)
def test_bytes_are_taken_where_the_log_begins_and_ends_only(wrong: bytes) -> None:
    pair = Pair(FakeLog(BYTES), NEW)
    greet(pair)
    assert "breaks the protocol" in closed(pair.follower.take(wrong)).reason


def test_what_was_just_written_is_sent_at_once_unless_the_copy_lags() -> None:
    """Nothing of what a copy does not read may stay in memory."""
    pair = Pair(FakeLog(), NEW)
    pair.meet()
    pair.log.put(b"x")
    assert pair.master.advanced() == [Send(data_frame(0, b"x"))]
    assert pair.master.advanced() == []
    pair.log.put(b"yz")
    pair.master.is_full = True
    assert pair.master.advanced() == [Read(1, 2)]
    assert pair.master.read_done(b"yz") == [Send(data_frame(1, b"yz"))]
    # The piece ends with its segment; the rest is read as what is older.
    pair.master.is_full = False
    pair.log.put(bytes(SEGMENT))
    first, rest = pair.master.advanced()
    assert (first, rest) == (Send(data_frame(3, bytes(SEGMENT - 3))), Read(SEGMENT, 3))


def test_what_is_removed_while_it_is_sent_ends_the_connection() -> None:
    pair = Pair(FakeLog(), NEW)
    pair.meet()
    pair.log.put(b"x")
    pair.log.recent_from = 1
    assert pair.master.advanced() == [Read(0, 1)]
    pair.by_master(pair.master.read_done(None))
    assert [end.is_final for end in pair.ends()] == [False, False]


# --- where two logs part

PARTED = {
    "the same": (TWO, TWO, wire.OFFSET_MAX),
    "the master has opened again": ((FIRST,), TWO, 4000),
    "the oldest are dropped": (TWO, TWO[1:], wire.OFFSET_MAX),
    "the oldest are dropped, and it has opened again": (TWO, (TWO[1], Epoch(1, 2, 5000, M)), 5000),
    # Each of two numbers of the review was 0: lists were compared by their places.
    "a list that begins later": ((FIRST,), (Epoch(2, 0, 900, G),), 900),
    "nothing in common": ((FIRST, Epoch(1, 1, 500, M)), (Epoch(2, 0, 900, G),), 900),
    "two were promoted": ((FIRST, Epoch(2, 0, 700, F)), (FIRST, Epoch(2, 0, 900, G)), 700),
    "two were promoted at one offset": ((FIRST, Epoch(2, 0, 700, F)), (FIRST, Epoch(2, 0, 700, G)), 700),
    "a later one begins earlier": ((*TWO, Epoch(1, 2, 3000, M)), TWO, 3000),
    "no list": ((), TWO, wire.OFFSET_MAX),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other", "offset"), PARTED.values(), ids=PARTED)
def test_lists_of_epochs_say_where_two_logs_part(
    one: tuple[Epoch, ...], other: tuple[Epoch, ...], offset: int
) -> None:
    assert parting(one, other) == parting(other, one) == offset


# A copy that is cut before the master's log would have lost what it had, and could not follow then.
@pytest.mark.parametrize(("begin", "can_cut"), [(0, True), (SEGMENT, False)])
def test_a_master_that_has_lost_what_was_copied_is_not_followed(begin: int, can_cut: bool) -> None:
    refused, end = Pair(FakeLog(BYTES, min_offset=begin, epochs=TWO), mine()).ends()
    assert (end.parts_at, end.is_final, end.needs_copy, end.can_cut) == (4000, True, True, can_cut)
    assert "the copy closes" in refused.reason


@pytest.mark.parametrize("parts_at", [0, 1, 3000, 1 << 20, (3 << 20) - 1])
def test_other_bytes_under_the_same_epochs_are_found_to_the_byte(parts_at: int) -> None:
    data = bytes(3 << 20)
    other = data[:parts_at] + b"?" * (len(data) - parts_at)
    _, end = Pair(FakeLog(data), mine(other), other).ends()
    # A disk has changed them: perhaps the master's.
    assert (end.parts_at, end.is_final, end.can_cut) == (parts_at, True, False)


def test_a_master_that_is_not_as_far_is_tried_again() -> None:
    """A master that has just opened shows its log bit by bit."""
    *_, end = Pair(FakeLog(BYTES[:4999]), mine()).ends()
    assert not end.is_final
    assert "5000" in end.reason


@pytest.mark.parametrize("whose", ["master", "own"])
def test_what_is_removed_while_it_is_compared_is_tried_again(whose: str) -> None:
    pair = Pair(FakeLog(BYTES), mine())
    peer: Any = pair.master if whose == "master" else pair.follower
    hashed = peer.hashed
    peer.hashed = lambda start, stop, _: hashed(start, stop, None)
    assert [end.is_final for end in pair.ends()] == [False, False]


def test_a_master_that_answers_twice_for_both_is_not_believed() -> None:
    pair = Pair(FakeLog(BYTES), mine())
    greet(pair)
    answer = wire.control("digest", start=0, stop=5000, sha256="0" * 64)
    assert not pair.follower.take(answer * 2)


# --- time


def test_a_silent_other_side_ends_the_connection_once() -> None:
    for is_silent in (True, False):
        pair = Pair(FakeLog(BYTES), NEW)
        pair.meet()
        for peer in (pair.master, pair.follower):
            assert not any(isinstance(action, Close) for action in peer.tick(SILENCE_MS - 1))
            bye = wire.bye("closing", "it was silent") * 2
            actions = peer.tick(SILENCE_MS) if is_silent else peer.take(bye)
            (end,) = [action for action in actions if isinstance(action, Close)]
            assert "silent" in end.reason
            assert peer.tick(SILENCE_MS + 1) == peer.take(b"x") == []


def test_both_say_each_heartbeat_how_far_they_are() -> None:
    pair = Pair(FakeLog(BYTES), NEW)
    pair.meet()
    pair.follower.landed(8192, 0)
    assert pair.master.tick(HEARTBEAT_MS - 1) == pair.follower.tick(HEARTBEAT_MS - 1) == []
    assert pair.master.tick(HEARTBEAT_MS) == [Send(wire.heartbeat_frame(8192))]
    assert pair.follower.tick(HEARTBEAT_MS) == [Send(wire.ack_frame(8192, 0))]
    # What is told late is not news.
    assert pair.follower.landed(8192, 0) == pair.follower.landed(8000, 0) == []


def test_whoever_does_not_ask_to_follow_in_time_is_disconnected() -> None:
    """A byte now and then kept a connection open for ever."""
    master = Pair(FakeLog(), NEW).master
    for now_ms in range(0, GREETING_MS, 500):
        assert not any(isinstance(action, Close) for action in master.tick(now_ms))
        master.take(wire.FIRST_REPORT[:1] if now_ms < 4000 else b"")
    assert any(isinstance(action, Close) for action in master.tick(GREETING_MS))


def test_an_earlier_connection_of_the_same_store_is_ended() -> None:
    pair = Pair(FakeLog(BYTES), mine())
    pair.meet()
    pair.copies.join(F, "f:2", 0)
    assert "again" in closed(pair.master.tick(1)).reason


@pytest.mark.parametrize("first", [b"\0" * 8, b"\xff" * 7 + b"\xfe", b"GET / HT"])
def test_what_does_not_begin_as_a_copy_gets_no_answer_but_a_reason(first: bytes) -> None:
    master = Pair(FakeLog(), NEW).master
    assert [type(action) for action in master.take(first)] == [Close]


def test_more_questions_than_a_follower_needs_end_the_connection() -> None:
    master = Pair(FakeLog(BYTES), NEW).master
    master.take(wire.FIRST_REPORT)
    *asked, _, end = master.take(hello() + wire.control("ask", start=0, stop=100) * 81)
    assert asked == [Hash(0, 100)] * 80
    assert isinstance(end, Close)


# --- the secret

KEY = b"a secret of both sides"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ((KEY, KEY), ""),
        ((KEY, KEY + b"!"), "does not know"),
        ((KEY, None), "asks for a secret"),
        ((None, KEY), "has no secret"),
    ],
)
def test_without_the_same_secret_nothing_is_compared_or_sent(
    keys: tuple[bytes | None, ...], why: str
) -> None:
    pair = Pair(FakeLog(BYTES), mine(), keys=keys)
    ends = pair.ends()
    assert any(why in end.reason and end.is_final for end in ends) == bool(why)
    compares = any(isinstance(each, Accept | Feed | Hash | ReadRanges) for each in pair.done)
    assert compares == (not why)
    assert not [each for each in pair.done if isinstance(each, Send) and KEY in each.data]


def test_a_proof_is_good_for_one_connection_and_one_side() -> None:
    proof = Secret(KEY, "1" * 32).proof("follower", "2" * 32)
    assert Secret(KEY, "2" * 32).is_proved("follower", "1" * 32, proof)
    assert not Secret(KEY, "3" * 32).is_proved("follower", "1" * 32, proof)
    assert not Secret(KEY, "2" * 32).is_proved("master", "1" * 32, proof)
    assert Secret(KEY).nonce != Secret(KEY).nonce


def test_a_false_master_is_left_before_anything_is_compared() -> None:
    """It has recorded what the true one says, and could let a copy be cut."""
    for word in (
        wire.control("prove", proof="0" * 64),
        wire.control("digest", start=0, stop=1, sha256=None),
    ):
        pair = Pair(FakeLog(BYTES), mine(), keys=(KEY, KEY))
        greet(pair)
        assert [type(action) for action in pair.follower.take(word)] == [Send, Close]
