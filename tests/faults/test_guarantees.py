"""Rows of the table of guarantees in docs/consumers.md that no other test shows by itself; the processes are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lanes import eventually

import penstock
from penstock import Durability, PutStatus
from penstock.store.store import Store


def killed_after(path: Path, work: Callable[[Store], object]) -> None:
    """Open a store in another process, do something, and kill that process."""
    child = os.fork()
    if child == 0:
        try:
            work(penstock.open(path, environ={}))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def orders(path: Path, count: int = 1) -> None:
    with penstock.open(path, environ={}) as store:
        for number in range(count):
            store.put("orders", b"%d" % number, queue=0)


def left(path: Path) -> list[bytes]:
    """Return what the group gets."""
    with (
        penstock.open(path, environ={}) as store,
        store.consumer("billing", "orders") as consumer,
    ):
        return [message.body for message in consumer.poll(100, timeout=0)]


@pytest.mark.parametrize("puts_first", [True, False])
def test_a_put_and_an_acknowledgement_are_two_steps(puts_first: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    orders(path)

    def work(store: Store) -> None:
        consumer = store.consumer("billing", "orders")
        (message,) = consumer.poll()
        if puts_first:
            store.put("invoices", message.body, queue=0)
        else:
            message.ack()

    killed_after(path, work)
    assert left(path) == ([b"0"] if puts_first else [])
    with penstock.open(path, environ={}) as store:
        assert store.max_offset("invoices", 0) == int(puts_first)


def test_a_killed_consumer_keeps_what_it_has_acknowledged_and_what_it_had_counts_as_tried(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    orders(path, 6)

    def work(store: Store) -> None:
        messages = store.consumer("billing", "orders").poll(5)
        messages[1].ack()
        messages[3].ack(sync=False)

    killed_after(path, work)
    with penstock.open(path, environ={}) as store, store.consumer("billing", "orders") as consumer:
        again = consumer.poll(10, timeout=0)
        assert [message.body for message in again] == [b"0", b"2", b"4", b"5"]
        assert [message.attempt for message in again] == [2, 2, 2, 1]


def test_a_broker_gets_the_lowest_offset_that_was_not_acknowledged(tmp_path: Path) -> None:
    """Here nothing comes again that was acknowledged; a broker sees only the committed offset."""
    path = tmp_path / "s"
    orders(path, 6)
    with penstock.open(path, environ={}) as store, store.consumer("billing", "orders") as consumer:
        messages = consumer.poll(6)
        for number in (0, 1, 3, 5):
            messages[number].ack()
    with penstock.open(path, environ={}, read_only=True) as store:
        assert store.committed_offset("billing", "orders", 0) == 2
    assert left(path) == [b"2", b"4"]


def test_refused_messages_wait_for_a_writer_and_outlive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "s"
    orders(path, 2)

    def work(store: Store) -> None:
        store.close()
        reader = penstock.open(path, environ={}, read_only=True)
        refused, _ = reader.consumer("billing", "orders").poll(2)
        refused.nack(delay=1)

    killed_after(path, work)
    with (
        penstock.open(path, environ={}, read_only=True) as reader,
        reader.consumer("billing", "orders") as consumer,
    ):
        (message,) = consumer.poll(10, timeout=120)
        assert message.body == b"1"
        message.ack()
    with penstock.open(path, environ={}) as store, store.consumer("billing", "orders") as consumer:
        (again,) = consumer.poll(10, timeout=120)
        assert (again.body, again.attempt) == (b"0", 2)


def test_a_transaction_that_acknowledges_is_on_disk_and_its_receipts_say_so(
    tmp_path: Path,
) -> None:
    """Under `async`, too: they said "accepted", where the docs promise the disk."""
    with penstock.open(tmp_path / "s", environ={}) as store:
        store.put("orders", b"in", queue=0)
        with store.consumer("billing", "orders") as consumer:
            (message,) = consumer.poll(1)
            with store.transaction() as tx:
                tx.put("bills", b"out", queue=0)
                tx.ack(message)
        (receipt,) = tx.receipts
        assert (receipt.status, receipt.durability) == (PutStatus.PUT_OK, Durability.ON_DISK)
        assert store.stats()["flushed_offset"] >= receipt.log_offset + receipt.size


SERVICE = """
import sys, penstock
with penstock.open(sys.argv[1], environ={}) as store:
    with store.consumer("billing", "orders") as consumer:
        consumer.run(lambda message: print(message.body.decode(), flush=True))
print("ended", flush=True)
"""


def test_a_signal_that_does_not_wake_the_main_thread_ends_a_service(tmp_path: Path) -> None:
    """One that came just before the thread waited was caught, and the service went on for ever."""
    orders(tmp_path / "s")
    elsewhere = "lambda m: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)"
    script = SERVICE.replace("import sys", "import signal, sys, threading")
    script = script.replace("lambda message: print(message.body.decode(), flush=True)", elsewhere)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            eventually(lambda: process.poll() is not None, "the service ends")
        finally:
            process.kill()
        assert (process.returncode, process.communicate()[0]) == (0, "ended\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_service_ends_cleanly_on_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C ended `run` with a traceback, and SIGTERM ended the process like a crash."""
    orders(tmp_path / "s")
    command = [sys.executable, "-c", SERVICE, str(tmp_path / "s")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.send_signal(number)
        said, errors = process.communicate()
    assert (process.returncode, said, errors) == (0, "ended\n", "")
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
    assert left(tmp_path / "s") == []
