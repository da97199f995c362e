"""Topics that a real broker deleted, and deleted and made again: Penstock shows what its clients see. And the reverse."""

import shutil
import sys
from pathlib import Path

import pytest
from tests.interop.brokers import Broker, body_of, sent
from tests.interop.jvms import MakeBroker
from tests.interop.programs import run_program, wait_for_end
from tests.interop.takeover import opened

from penstock import Store

# 5.5 keeps other index files; what is deleted there is deleted as in 5.3.
VERSIONS = ("4.9.7", "5.3.3")
TOPICS = ("again", "kept")
QUEUES = 4


def seen_by_client(broker: Broker, topics: tuple[str, ...]) -> dict[tuple[str, int], list[bytes]]:
    """Return the bodies of every queue that has any, by topic and queue."""
    found = {(t, q): broker.bodies(t, q) for t in topics for q in range(QUEUES)}
    for (topic, queue), bodies in found.items():
        assert broker.bounds(topic, queue) == (0, len(bodies))
    return {place: bodies for place, bodies in found.items() if bodies}


def seen_by_us(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """Return the same from Penstock, by single reads and as columns; broker's own topics are left out."""
    found = {}
    for topic, queues in store.topics(system=True).items():
        for queue in queues if topic.islower() and not topic.startswith("rmq_") else ():
            bodies = [m.body for m in store.scan(topic, queue=queue)]
            assert store.max_offset(topic, queue) == len(bodies)
            assert store.to_arrow(topic, queue=queue).column("body").to_pylist() == bodies
            if bodies:
                found[topic, queue] = bodies
    return found


def check_healthy(root: Path) -> None:
    with opened(root, read_only=True) as store:
        # That a queue has a new generation is a note.
        assert [f.text for f in store.verify() if not f.is_note] == []


def delete(broker: Broker, root: Path, topic: str) -> None:
    broker.delete(topic)
    # If the broker's flush thread holds a queue's file at that moment, the broker leaves the file, and goes on in it when the
    # topic is created again, with the old entries behind the new ones.
    shutil.rmtree(root / "consumequeue" / topic, ignore_errors=True)


def delete_and_create(broker: Broker, root: Path) -> None:
    """Send to all topics; delete `gone` and `again`, and create `again` with other messages."""
    for topic in ("gone", *TOPICS):
        broker.create(topic, QUEUES)
        broker.send(*(sent(topic, b"old-%s-%d" % (topic.encode(), n), n % QUEUES, keys=f"k{n}")
                      for n in range(40)))  # fmt: skip
    delete(broker, root, "gone")
    delete(broker, root, "again")
    broker.send(*(sent("kept", b"later-%d" % n, n % QUEUES) for n in range(8)))
    broker.create("again", QUEUES)
    # Queue 2 and 3 have no message yet: the broker makes their folders with the first one.
    broker.send(*(sent("again", b"new-%d" % n, n % 2) for n in range(5)))


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_penstock_shows_what_clients_of_the_broker_see(
    version: str, killed: bool, make_broker: MakeBroker, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    broker = make_broker(version)
    broker.start(root)
    delete_and_create(broker, root)
    found = broker.query("kept", "k3")
    expected = seen_by_client(broker, TOPICS)
    assert len(expected) == 6
    if killed:
        broker.kill()
    else:
        broker.stop()
    check_healthy(root)
    with opened(root, read_only=True) as store:
        assert seen_by_us(store) == expected
    with opened(root) as store:
        assert seen_by_us(store) == expected
        assert [m.body for m in store.find("k3", "kept")] == [body_of(one) for one in found]
        # The log still has it, and a broker's queryMessage answers it as well.
        assert [m.body for m in store.find("k3", "gone")] == [b"old-gone-3"]
        assert store.put("again", b"ours", queue=0).queue_offset == 3
        assert store.put("again", b"ours", queue=3).queue_offset == 0
        assert store.put("gone", b"ours", queue=1).queue_offset == 0
    expected["again", 0].append(b"ours")
    expected |= {("again", 3): [b"ours"], ("gone", 1): [b"ours"]}
    check_healthy(root)

    broker = make_broker(version)
    broker.start(root)
    broker.create("gone", QUEUES)
    assert seen_by_client(broker, ("gone", *TOPICS)) == expected
    broker.send(sent("again", b"more", 0), sent("gone", b"more", 1))
    expected["again", 0].append(b"more")
    expected["gone", 1].append(b"more")
    broker.kill()
    with opened(root) as store:
        assert seen_by_us(store) == expected
        store.put("kept", b"last", queue=0)
    expected["kept", 0].append(b"last")
    check_healthy(root)
    broker = make_broker(version)
    broker.start(root)
    assert seen_by_client(broker, ("gone", *TOPICS)) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_that_was_restarted_after_a_deletion(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Killed, a broker walks its last files again and enters deleted messages itself: its entries count."""
    root = tmp_path / "store"
    broker = make_broker(version)
    broker.start(root)
    for topic in ("gone", *TOPICS):
        broker.create(topic, QUEUES)
        broker.send(*(sent(topic, b"old-%d" % n, n % QUEUES) for n in range(12)))
    delete(broker, root, "gone")
    delete(broker, root, "again")
    broker.create("again", QUEUES)
    broker.send(sent("again", b"new", 1))
    broker.kill()
    broker = make_broker(version)
    broker.start(root)
    expected = seen_by_client(broker, TOPICS)
    assert expected["again", 1] == [b"new"]
    broker.stop()
    check_healthy(root)
    with opened(root, read_only=True) as store:
        before = seen_by_us(store)
    assert {place: bodies for place, bodies in before.items() if place[0] != "gone"} == expected
    with opened(root) as store:
        assert seen_by_us(store) == before
        store.put("again", b"ours", queue=1)
    expected["again", 1].append(b"ours")
    check_healthy(root)
    broker = make_broker(version)
    broker.start(root)
    assert seen_by_client(broker, TOPICS) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_that_enters_a_new_message_after_the_old_ones(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Killed before it had entered the message that says queue offset 0: no corruption, and nothing goes over it."""
    root = tmp_path / "store"
    broker = make_broker(version)
    broker.start(root)
    broker.create("again")
    broker.send(*(sent("again", b"old-%d" % n) for n in range(3)))
    delete(broker, root, "again")
    broker.create("again")
    broker.send(sent("again", b"new", keys="k"))
    broker.kill()
    shutil.rmtree(root / "consumequeue" / "again" / "0")
    broker = make_broker(version)
    broker.start(root)
    shown = [b"old-0", b"old-1", b"old-2", b"new"]
    assert broker.bodies("again") == shown
    broker.kill()
    check_healthy(root)
    with opened(root) as store:
        assert [m.body for m in store.scan("again")] == shown[:3]
        assert [m.body for m in store.find("k", "again")] == [b"new"]
        assert store.put("again", b"ours", queue=0).queue_offset == 4
    check_healthy(root)
    broker = make_broker(version)
    broker.start(root)
    assert broker.bodies("again") == [*shown, b"ours"]


def main() -> None:
    """Delete topics, and make one of them again."""
    store = opened(Path(sys.argv[1]))
    for topic in ("gone", *TOPICS):
        store.create_topic(topic, queues=QUEUES)
        for number in range(8):
            store.put(topic, b"old-%d" % number, queue=number % 2)
    store.delete_topic("gone")
    store.delete_topic("again")
    store.create_topic("again", queues=QUEUES)
    store.put("again", b"new", queue=1)
    store.flush()
    wait_for_end()
    store.close()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_takes_over_after_penstock_deleted_topics(
    version: str, killed: bool, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """After a close it does not know them. After a kill it walks the last files and shows them, as after deletions of its own."""
    root = tmp_path / "store"
    run_program("tests.night.brokers.test_deleted_topics", str(root), is_killed=killed)
    old = {queue: [b"old-%d" % number for number in range(queue, 8, 2)] for queue in range(2)}
    broker = make_broker(version)
    broker.start(root)
    assert broker.bodies("again", 1)[-1] == b"new"
    assert broker.bodies("again", 0) == (old[0] if killed else [])
    assert broker.bodies("kept", 0) == old[0]
    broker.create("gone", QUEUES)
    assert [broker.bodies("gone", queue) for queue in range(2)] == (
        [old[0], old[1]] if killed else [[], []]
    )
    broker.send(sent("gone", b"theirs", 1), sent("again", b"theirs", 1))
    broker.kill()
    # What Penstock removed does not come back here, and what the broker added is kept.
    if not killed:
        check_healthy(root)
    kept = {("kept", queue): bodies for queue, bodies in old.items()}
    with opened(root) as store:
        # After a kill the broker's own message has the offset after those that it had made again.
        found = {
            (t, q): [m.body for m in store.scan(t, queue=q)]
            for t in ("gone", *TOPICS)
            for q in range(2)
        }
        assert {place: bodies for place, bodies in found.items() if bodies} == {
            ("gone", 1): [b"theirs"], ("again", 1): [b"new", b"theirs"], **kept,
        }  # fmt: skip
    check_healthy(root)


if __name__ == "__main__":
    main()
