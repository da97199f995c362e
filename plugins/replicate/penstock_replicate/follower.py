"""The follower's end of a connection: it decides whether its log continues the master's, and then takes what comes.

Two logs of one history are equal up to the first epoch that only one of them has. That does not find bytes that were
changed on a disk, so the last MiB of the follower's log is compared by its digest as well. A log that differs is not
touched: the error says where they part, which is found by comparing the digests of about 40 parts.

Nothing is changed before the master has accepted: `Accept` is the first action that concerns the store.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from penstock.contracts import Epoch, FollowBegin, Replica
from penstock_replicate import wire
from penstock_replicate.beside import Parts
from penstock_replicate.peer import Accept, Action, Hash, Level, Peer, Send
from penstock_replicate.wire import Data, Heartbeat, WireViolation

# What a master may answer so that a later attempt can succeed.
_PASSING = frozenset({"closing", "ahead", "busy", "silence", "violation"})


def parting(mine: Sequence[Epoch], theirs: Sequence[Epoch]) -> int:
    """Return the log offset where two logs of one history part, as their epochs say; `wire.OFFSET_MAX` if they do not.

    Epochs are compared as wholes, since either list may have lost its oldest ones. If the lists have none in common,
    the logs may part earlier.
    """
    both = {*mine} & {*theirs}
    common = [epoch[:2] for epoch in mine if epoch in both]
    if common:
        others = [epoch for epoch in (*mine, *theirs) if epoch[:2] > common[-1]]
    elif mine and theirs:
        # Of what came before it, the list that begins later says nothing.
        first = max(mine[0][:2], theirs[0][:2])
        others = [epoch for epoch in (*mine, *theirs) if epoch[:2] >= first]
    else:
        others = []
    return min((epoch.start for epoch in others), default=wire.OFFSET_MAX)


@attrs.frozen(kw_only=True)
class Mine:
    """The store that follows.

    Attributes:
        master: "HOST:PORT" of the master.
        fresh_store: an id that no other store has, for one that has none, or has been copied from its master.
        replica: its identity; None if it has none.
        segment_bytes: the size of its segments; None if there is no store yet.
        min_offset: the first byte that it has.
        end_offset: the end of its last whole record.
    """

    master: str
    fresh_store: str
    replica: Replica | None = None
    segment_bytes: int | None = None
    min_offset: int = 0
    end_offset: int = 0

    @property
    def is_new(self) -> bool:
        """Whether there is no store yet."""
        return self.segment_bytes is None

    @property
    def is_empty(self) -> bool:
        """Whether it has no record."""
        return self.end_offset == self.min_offset


class FollowerPeer(Peer):
    """Follows a master over one connection; `options` are those of `Machine`.

    Attributes:
        master_visible: where the master's log ends, as it has said last; it may be lower than before.
        heartbeats: how often it has said so.
        levels: how often all files beside the log were written.
    """

    opening = wire.GREETING
    other = "master"

    def __init__(self, mine: Mine, **options: Any) -> None:
        super().__init__(**options)
        self._mine = mine
        self._store = mine.fresh_store
        # Those of the log: a store without a record has none.
        replica = None if mine.is_empty else mine.replica
        self._history = None if replica is None else replica.history
        self._epochs = () if replica is None else replica.epochs
        self._expected = {"hello"}
        self._master: Mapping[str, Any] = {}
        self._window = (0, 0)
        # Of the window, by whose it is.
        self._digests: dict[str, bytes] = {}
        # Once they are known to differ: between which offsets they begin to, if all that follows differs.
        self._differs: tuple[int, int] | None = None
        self._next = 0
        self._landed: tuple[int, int] | None = None
        self.master_visible = 0
        self.heartbeats = self.levels = 0
        self._parts = Parts()

    def start(self) -> list[Action]:
        """Return what to do when the connection is made."""
        return [Send(wire.FIRST_REPORT)]

    @property
    def next_offset(self) -> int | None:
        """The log offset with which the frames that come next go on; None if the store may not take them by itself."""
        is_open = "Data" in self._expected and not self.reader.held_bytes and not self.is_over
        return self._next if is_open else None

    def passed(self, log_offset: int) -> None:
        """Note that the store has taken frames by itself, up to a log offset."""
        self._heard_ms, self._next = self._now_ms, log_offset
        self.master_visible = max(self.master_visible, log_offset)

    def _on_bye(self, fields: Mapping[str, Any]) -> list[Action]:
        code, is_gone = fields["code"], fields["code"] == "removed"
        is_final = code not in _PASSING and not (is_gone and self._mine.is_new)
        return self._close(fields["text"], is_final=is_final, needs_copy=is_gone and is_final)

    # --- the comparison

    def _on_hello(self, master: Mapping[str, Any]) -> Iterator[Action]:
        mine, secret = self._mine, self._secret
        self._master = master
        if master["history"] is None or master["segment_bytes"] is None:
            raise WireViolation("a master without a history or without segments")
        if (master["nonce"] is None) != (secret is None):
            text = "the master asks for a secret" if secret is None else "the master has no secret"
            yield from self.end("secret", text, is_final=True)
            return
        # It is the master's if the folder was copied.
        if mine.replica is not None and mine.replica.store != master["store"]:
            self._store = mine.replica.store
        hello = wire.hello_of(
            secret, self._epochs, history=self._history, store=self._store, segment_bytes=mine.segment_bytes,
            min=mine.min_offset, end=mine.end_offset,
            proof=None if secret is None else secret.proof("follower", master["nonce"]),
        )  # fmt: skip
        yield Send(wire.control("hello", **hello))
        if (refusal := wire.refusal_of(master, hello)) is not None:
            yield from self.end(*refusal, is_final=True)
        elif secret is not None:
            self._expected = {"prove"}
        else:
            yield from self._compare()

    def _on_prove(self, fields: Mapping[str, Any]) -> Iterator[Action]:
        assert self._secret is not None
        if not self._secret.is_proved("master", self._master["nonce"], fields["proof"]):
            raise WireViolation("it does not know the secret")
        yield from self._compare()

    def _compare(self) -> Iterator[Action]:
        mine, master = self._mine, self._master
        end = mine.end_offset
        parts_at = parting(self._epochs, master["epochs"])
        start = max(mine.min_offset, master["min"], end - wire.DIGEST_BYTES_MAX)
        if parts_at < end:
            text = (
                f"the master has written other bytes from {parts_at} on, and the copy ends at {end}"
            )
            yield from self._diverged(parts_at, text, can_cut=parts_at >= master["min"])
        elif not mine.is_empty and master["end"] < end:
            text = f"the copy ends at {end}, and the master's log at {master['end']}"
            yield from self.end("ahead", text)
        elif start < end:
            yield from self._ask(start, end)
        else:
            yield self._follow()

    def _on_digest(self, fields: Mapping[str, Any]) -> Iterator[Action]:
        if (fields["start"], fields["stop"]) != self._window:
            raise WireViolation("an answer to another question")
        if fields["sha256"] is None:
            yield from self.end("closing", "the master has just removed what was compared")
        else:
            yield from self._compared("master", bytes.fromhex(fields["sha256"]))

    def hashed(self, start: int, stop: int, digest: bytes | None) -> list[Action]:
        """Compare the SHA-256 of a part of the own log with the master's; None if retention has removed it here."""
        if self.is_over:
            return []
        if digest is None:
            return self.end("closing", "the copy has just removed what was compared")
        return [*self._compared("own", digest)]

    def _ask(self, start: int, stop: int) -> Iterator[Action]:
        """Let both sides compute the digest of a part of the log."""
        self._expected = {"digest"}
        self._window = (start, stop)
        self._digests.clear()
        yield Send(wire.control("ask", start=start, stop=stop))
        yield Hash(start, stop)

    def _compared(self, whose: str, digest: bytes) -> Iterator[Action]:
        """Follow if the last MiB is equal; otherwise find, by halves, where the logs part."""
        self._digests[whose] = digest
        if self._digests.keys() != {"own", "master"}:
            return
        is_equal = self._digests["own"] == self._digests["master"]
        if is_equal and self._differs is None:
            yield self._follow()
            return
        _, stop = self._window
        first = max(self._mine.min_offset, self._master["min"])
        least, most = self._differs or (first, stop)
        self._differs = least, most = (stop, most) if is_equal else (least, stop)
        if most - least > 1:
            middle = (least + most) // 2
            yield from self._ask(max(least, middle - wire.DIGEST_BYTES_MAX), middle)
        else:
            yield from self._diverged(
                least, f"the bytes at {least} differ: run penstock verify on both"
            )

    def _diverged(self, parts_at: int, text: str, *, can_cut: bool = False) -> list[Action]:
        facts = {"parts_at": parts_at, "can_cut": can_cut}
        return self.end("diverged", text, is_final=True, needs_copy=True, **facts)

    # --- following

    def _follow(self) -> Action:
        self._expected = {"accept"}
        self.reader.limits = wire.BEFORE_ACCEPT
        self._next = self._master["min"] if self._mine.is_new else self._mine.end_offset
        return Send(wire.control("follow", log_offset=self._next))

    def _on_accept(self, fields: Mapping[str, Any]) -> Iterable[Action]:
        master, log_offset = self._master, fields["log_offset"]
        if log_offset != self._next or (self._mine.is_new and log_offset % master["segment_bytes"]):
            raise WireViolation(f"it begins at {log_offset}")
        self._expected = {"Data", "Heartbeat", "file", "level"}
        self.reader.limits = wire.FROM_MASTER
        replica = Replica(
            history=master["history"],
            store=self._store,
            role="follower",
            master=self._mine.master,
            protocol="penstock",
            # All of them: bytes of the newest will come without another word.
            epochs=master["epochs"],
        )
        begin = None
        if self._mine.is_new:
            begin = FollowBegin(segment_bytes=master["segment_bytes"], log_offset=log_offset)
        return (Accept(replica=replica, ranges=fields["ranges"], begin=begin),)

    def _on_data(self, data: Data) -> Iterable[Action]:
        if data.log_offset != self._next:
            raise WireViolation(f"data of log offset {data.log_offset} instead of {self._next}")
        self._next += len(data.data)
        self.master_visible = max(self.master_visible, self._next)
        return (data,)

    def _on_heartbeat(self, heartbeat: Heartbeat) -> Iterable[Action]:
        self.master_visible = heartbeat.visible
        self.heartbeats += 1
        return ()

    def _on_file(self, fields: Mapping[str, Any]) -> Iterable[Action]:
        file = self._parts.take(fields)
        return () if file is None else (file,)

    def _on_level(self, fields: Mapping[str, Any]) -> Iterable[Action]:
        return (Level(fields["number"]),)

    def landed(self, received: int, flushed: int) -> list[Action]:
        """Acknowledge that the system has the own log up to `received`, the disk up to `flushed`; neither recedes."""
        last = self._landed or (0, 0)
        landed = max(received, last[0]), max(flushed, last[1])
        if self.is_over or landed == self._landed:
            return []
        self._landed = landed
        return self._heartbeat()

    def leveled(self, number: int) -> list[Action]:
        """Tell the master that all files of a reading are written."""
        self.levels += 1
        return [] if self.is_over else [Send(wire.control("level", number=number))]

    def _heartbeat(self) -> list[Action]:
        return [] if self._landed is None else self._say(wire.ack_frame(*self._landed))
