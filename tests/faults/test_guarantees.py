"""Rows of the table of guarantees in docs/consumers.md that no other test shows by itself."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lanes import eventually

import penstock
from penstock import Durability, PutStatus


def one_order(path: Path) -> None:
    with penstock.open(path, environ={}) as store:
        store.put("orders", b"0", queue=0)


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
    one_order(tmp_path / "s")
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
    one_order(tmp_path / "s")
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
        with store.consumer("billing", "orders") as consumer:
            assert consumer.poll(100, timeout=0) == []
