"""Messages that kill their consumer's process, as the out-of-memory killer does: other message stores hand them out for ever."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def put(path: Path, *bodies: bytes, **more: Any) -> None:
    with penstock.open(path) as store:
        for body in bodies:
            store.put("t", body, queue=0, **more)


def killed(path: Path, work: Callable[[Any], object], **options: Any) -> None:
    """Let a consumer in another process work, and die."""
    child = os.fork()
    if not child:
        try:
            store = penstock.open(path, read_only=True)
            work(store.consumer("g", "t", **options))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def found(path: Path, limit: int = 100, **options: Any) -> list[tuple[bytes, int]]:
    """Return body and attempt of what the group gets next; it is released."""
    with penstock.open(path) as store, store.consumer("g", "t", **options) as consumer:
        return [(each.body, each.attempt) for each in consumer.gather(limit)]


def dead(path: Path) -> list[tuple[bytes, int, str | None]]:
    """Return body, tries and reason of the dead letters."""
    with penstock.open(path) as store:
        return [
            (each.body, each.reconsume_times, each.properties.get("FAILURE_REASON"))
            for each in store.scan("%DLQ%g")
        ]


@pytest.mark.parametrize("ordered", [False, True])
def test_it_becomes_a_dead_letter_that_says_why(path: Path, *, ordered: bool) -> None:
    put(path, b"poison", b"good")
    options = {"max_retries": 2, "ordered": ordered}
    for attempt in (1, 2, 3):
        assert found(path, 1, **options) == [(b"poison", attempt)]
        killed(path, lambda consumer: consumer.poll(), **options)
    assert found(path, 1, **options) == [(b"good", 1)]
    assert dead(path) == [(b"poison", 3, "consumer died")]


def next_of(consumer: Any) -> None:
    next(iter(consumer))


def test_iterating_and_run_count_as_well_and_what_was_only_read_ahead_does_not(path: Path) -> None:
    put(path, b"poison", b"good")
    killed(path, next_of)
    assert found(path) == [(b"poison", 2), (b"good", 1)]
    killed(path, lambda consumer: consumer.run(lambda _: os.kill(os.getpid(), signal.SIGKILL)))
    assert found(path) == [(b"poison", 3), (b"good", 1)]


def test_messages_polled_together_are_not_given_up_for_one_of_them(path: Path) -> None:
    put(path, *(b"%d" % n for n in range(6)))
    done = path.parent / "done"

    def work(consumer: Any) -> None:
        while True:
            for message in consumer.poll(10):
                if message.body == b"3":
                    return
                with done.open("ab") as file:
                    file.write(message.body)
                message.ack()
            if message.body == b"5":
                return

    for _ in range(4):
        killed(path, work, max_retries=2)
    assert done.read_bytes() == b"01245"
    assert dead(path) == [(b"3", 3, "consumer died")]
    assert found(path) == []


def test_the_last_try_is_alone_also_beside_other_calls(path: Path) -> None:
    put(path, b"0", b"1", b"2")
    killed(path, lambda consumer: consumer.poll(2), max_retries=1)
    with penstock.open(path) as store, store.consumer("g", "t", max_retries=1) as consumer:
        (first,) = consumer.poll(10)
        assert consumer.poll(10, timeout=0) == []
        first.release()
        (first,) = consumer.poll(10)
        first.ack()
        (second,) = consumer.poll(10)
        assert (second.body, second.attempt) == (b"1", 2)
        second.ack()
        assert [each.body for each in consumer.poll(10)] == [b"2"]


def test_answers_end_a_delivery(path: Path) -> None:
    put(path, *(b"%d" % n for n in range(4)))

    def work(consumer: Any) -> None:
        first, second, third, _ = consumer.poll(4)
        consumer.ack(first, sync=False)
        second.release()
        third.nack(delay=7200)

    killed(path, work)
    assert found(path) == [(b"1", 1), (b"3", 2)]


def test_a_refusal_waits_for_a_writer_and_outlives_its_consumer(path: Path) -> None:
    put(path, b"0", b"1")
    killed(path, lambda consumer: consumer.poll(2)[0].nack(delay=1))
    with penstock.open(path, read_only=True) as store, store.consumer("g", "t") as consumer:
        (message,) = consumer.poll(10, timeout=120)
        assert message.body == b"1"
        message.ack()
    with penstock.open(path) as store, store.consumer("g", "t") as consumer:
        (again,) = consumer.poll(10, timeout=120)
        assert (again.body, again.attempt) == (b"0", 2)


def test_a_refusal_in_an_ordered_queue_ends_a_delivery(path: Path) -> None:
    """Its consumer was killed while the queue waited for the next try: the try before counted twice."""
    put(path, b"x")
    killed(path, lambda consumer: consumer.poll()[0].nack(), ordered=True)
    assert found(path, ordered=True) == [(b"x", 2)]


ENDS = {
    "close": "consumer.poll(); consumer.close()",
    "block": "with consumer: consumer.poll()",
    "exit": "consumer.poll(); sys.exit(1)",
    "interrupt": "consumer.poll(); raise KeyboardInterrupt",
    "end": "consumer.poll()",
    "break": "for _ in consumer: break",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_clean_end_of_a_program_counts_nothing(path: Path, end: str) -> None:
    put(path, b"x")
    opening = "import sys, penstock\nstore = penstock.open(sys.argv[1], read_only=True)\n"
    opening += 'consumer = store.consumer("g", "t")\n'
    subprocess.run([sys.executable, "-c", opening + ENDS[end], path], stderr=subprocess.DEVNULL, check=False)  # fmt: skip
    assert found(path) == [(b"x", 1)]
