"""The processes of `test_replication_chaos`: a master that uses every way in and says what it was promised, and a follower.

Run as `chaos_processes.py master PATH LISTEN TURN SEED COPIES FLUSH` and `chaos_processes.py follower PATH MASTER`.

The master writes lines: `open`; `put TOPIC BODY LOG_OFFSET STATUS DURABILITY` for each message that it knows to be stored; `paused END`,
after a line on its standard input: from then on it only delivers what is delayed. The follower writes `at END` as it goes on.
"""

import random
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import penstock
from penstock import Message, Receipt, Store
from penstock.contracts import Prepared
from penstock.errors import PenstockError
from penstock_replicate.following.follow import follow

SEGMENT_BYTES = 64 << 10
SETTINGS: dict[str, Any] = {
    "geometry.segment_bytes": SEGMENT_BYTES, "geometry.queue_entries": 200, "geometry.index_slots": 100,
    "geometry.index_entries": 400, "retention.use": ["size"],
}  # fmt: skip
KEPT_BYTES, KEPT_THERE_BYTES = 96 * SEGMENT_BYTES, 48 * SEGMENT_BYTES
TOPIC, OTHER, FLEETING, SOURCE = "orders", "bills", "fleeting", "source"
QUEUES = 3
DELAY_LEVEL = 1
_DELAY_MS = 1100
_PAUSE_S = 0.003
# A copy that is killed may lose a part of an atomic batch that it had acknowledged.
_KEPT_FOR_COPIES_BYTES = 4 * SEGMENT_BYTES


class ChaosMaster:
    """Uses every way into a store."""

    def __init__(self, store: Store, turn: str, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self._turn, self._count = turn, 0
        self._consumer = store.consumer("movers", SOURCE)

    def body(self, kind: str) -> bytes:
        """Return a body that no other message has, and a random rest."""
        self._count += 1
        size = self.chance.choice((0, 10, 100, 100, 700, 5000))
        return b"%s-%d-%s:" % (self._turn.encode(), self._count, kind.encode()) + bytes(size)

    def queue(self) -> int:
        return self.chance.randrange(QUEUES)

    def tell(self, topic: str, body: bytes, receipt: Receipt) -> None:
        name = body.partition(b":")[0].decode()
        text = f"put {topic} {name} {receipt.log_offset} {receipt.status} {receipt.durability.name}"
        sys.stdout.write(f"{text}\n")

    def step(self) -> None:
        """Do one thing of all."""
        ways = (
            self.put_one, self.put_one, self.put_more, self.put_more, self.submit_some, self.move, self.prepare_one,
            self.put_delayed, self.put_timed, self.change_topic, self.put_table, self.forget,
        )  # fmt: skip
        self.chance.choice(ways)()
        sys.stdout.flush()

    # --- ways

    def put_one(self) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            body = self.body("put")
            keys = [f"k{self._count % 50}"]
            self.tell(TOPIC, body, self.store.put(TOPIC, body, queue=self.queue(), keys=keys, tag="t"))  # fmt: skip

    def _some(self, kind: str, topics: Iterable[str]) -> list[Message]:
        return [
            Message(topic, self.body(kind), queue=self.queue(), keys=["many"]) for topic in topics
        ]

    def put_more(self) -> None:
        atomic = self.chance.random() < 0.5
        count = self.chance.randrange(1, 9 if atomic else 40)
        given = self._some("atomic" if atomic else "many", (self.chance.choice((TOPIC, OTHER)) for _ in range(count)))  # fmt: skip
        receipts = self.store.put_many(given, atomic=atomic)
        for message, receipt in zip(given, receipts, strict=True):
            self.tell(message.topic, message.body, receipt)

    def submit_some(self) -> None:
        given = self._some("submit", [TOPIC] * self.chance.randrange(1, 12))
        futures = [self.store.submit(m.topic, m.body, queue=m.queue, keys=m.keys) for m in given]
        for message, future in zip(given, futures, strict=True):
            self.tell(message.topic, message.body, future.result())

    def move(self) -> None:
        """Move messages of one topic to others, in the transaction that acknowledges them."""
        body = self.body("source")
        self.tell(SOURCE, body, self.store.put(SOURCE, body))
        taken = self._consumer.poll(5, 0)
        given = self._some("moved", (TOPIC, OTHER))
        if self.chance.random() < 0.2:
            self._consumer.release(taken)
            return
        with self.store.transaction() as tx:
            tx.ack(taken)
            tx.put_many(given)
        for message, receipt in zip(given, tx.receipts, strict=True):
            self.tell(message.topic, message.body, receipt)

    def prepare_one(self) -> None:
        body = self.body("prepared")
        prepared = self.store.prepare(TOPIC, body, group="shop", queue=self.queue())
        if self.chance.random() < 0.3:
            prepared.rollback()
        elif self.chance.random() < 0.9:
            self.tell(TOPIC, body, prepared.commit())

    def put_delayed(self) -> None:
        body = self.body("delayed")
        receipt = self.store.put(TOPIC, body, queue=self.queue(), delay_level=DELAY_LEVEL)
        self.tell("delayed", body, receipt)

    def put_timed(self) -> None:
        body = self.body("timed")
        receipt = self.store.put(TOPIC, body, queue=self.queue(), delay_ms=_DELAY_MS)
        self.tell("delayed", body, receipt)

    def change_topic(self) -> None:
        if FLEETING not in self.store.topic_configs():
            self.store.create_topic(FLEETING, queues=QUEUES)
        elif self.chance.random() < 0.3:
            self.store.delete_topic(FLEETING)
        else:
            self.store.put_many(self._some("fleeting", [FLEETING] * 3))
        queue = self.queue()
        if done := self.store.max_offset(TOPIC, queue):
            self.store.commit_offset("billing", TOPIC, queue, offset=self.chance.randint(0, done))

    def put_table(self) -> None:
        bodies = [self.body("arrow") for _ in range(self.chance.randrange(1, 30))]
        topics = [TOPIC] * len(bodies)
        queues = pa.array([self.queue() for _ in bodies], pa.int32())
        table = pa.table({"topic": topics, "body": pa.array(bodies, pa.binary()), "queue": queues})
        self.store.put_arrow(table, atomic=len(bodies) < 8, wait=self.chance.random() < 0.5)

    def forget(self) -> None:
        """Delete old segments, now and then, but none that a copy still needs."""
        copies = [each["received_offset"] for each in self.store.stats()["copies"]]
        if copies and self.chance.random() < 0.3:
            keep = min(copies) - _KEPT_FOR_COPIES_BYTES - self.chance.randrange(SEGMENT_BYTES * 4)
            self.store.discard_before(log_offset=max(keep, 0))


def check_back(prepared: Prepared) -> str:
    """Decide what a killed master has left: nobody was told of it."""
    return "rollback"


def run_master(
    path: str, listen: str, turn: str, seed: str, copies: str, flush: str, kept: int = KEPT_BYTES
) -> None:
    """Use every way in until told to pause, and then only deliver; for ever."""
    given: dict[str, Any] = {
        **SETTINGS, "flush": flush, "replicate": "ha", "replicate.ha.listen": listen, "replicate.ha.in_sync_replicas": int(copies),
        "replicate.ha.timeout_ms": 500, "replicate.ha.heartbeat_ms": 300, "replicate.ha.side_interval_ms": 100,
        "replicate.ha.silence_ms": 3000, "retention.size.bytes_max": kept,
    }  # fmt: skip
    with penstock.open(path, check_back=check_back, **given) as store:
        print("open", flush=True)
        is_told = threading.Event()

        def listen_for_words() -> None:
            sys.stdin.readline()
            is_told.set()

        threading.Thread(target=listen_for_words, daemon=True).start()
        master = ChaosMaster(store, turn, int(seed))
        while not is_told.is_set():
            master.step()
            time.sleep(master.chance.random() * _PAUSE_S)
        end = -1
        while True:
            if store.stats()["log_end_offset"] != end:
                end = store.stats()["log_end_offset"]
                print(f"paused {end}", flush=True)
            time.sleep(0.02)


def run_follower(path: str, master: str) -> None:
    """Follow until killed, or until following ends by an error, which is printed."""
    end = -1
    try:
        with follow(path, master, silence_ms=3000, **{**SETTINGS, "retention.size.bytes_max": KEPT_THERE_BYTES}) as follower:  # fmt: skip
            print("open", flush=True)
            while not follower.wait_over(0.02):
                if follower.status().end_offset != end:
                    end = follower.status().end_offset
                    print(f"at {end}", flush=True)
    except PenstockError as error:
        print(f"failed {type(error).__name__}: {error}", flush=True)
        raise


if __name__ == "__main__":
    if sys.argv[1] == "master":
        run_master(*sys.argv[2:8])
    else:
        run_follower(*sys.argv[2:4])
