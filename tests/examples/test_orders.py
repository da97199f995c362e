"""The order service of `examples/orders`, in processes of its own that are killed and started again."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lanes import eventually

import penstock

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders" / "orders.py"
# Of a condition that never comes true; the test itself takes as long as the delays of the example.
PATIENCE_S = 60.0


class Service:
    """The three parts of the service, and what each has printed so far. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, list[str]] = {"shop": [], "billing": [], "shipping": []}
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._news = threading.Condition()

    def start(self, part: str) -> None:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), part, str(self.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._running[part] = process
        self._readers[part] = threading.Thread(target=self._read, args=(part, process.stdout))
        self._readers[part].start()

    def _read(self, part: str, lines: Any) -> None:
        for line in lines:
            with self._news:
                self.lines[part].append(line.strip())
                self._news.notify_all()

    def order(self, *orders: str) -> None:
        stdin = self._running["shop"].stdin
        assert stdin is not None
        stdin.write("".join(f"{order}\n" for order in orders))
        stdin.flush()

    def said(self, part: str, word: str) -> Counter[str]:
        """Return how often a part printed this word, by order."""
        with self._news:
            said = [
                line.removeprefix(f"{word} ")
                for line in self.lines[part]
                if line.startswith(f"{word} ")
            ]
        return Counter(said)

    def until(self, is_true: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(is_true, PATIENCE_S), self.lines

    def end(self, part: str, how: signal.Signals) -> int:
        """End a part by a signal; return its exit status."""
        process = self._running.pop(part)
        process.send_signal(how)
        status = process.wait(PATIENCE_S)
        self._readers.pop(part).join()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return status

    def close(self) -> None:
        for part in list(self._running):
            self.end(part, signal.SIGKILL)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "data")
    yield made
    made.close()


@pytest.mark.slow
def test_every_order_is_charged_or_a_dead_letter_whatever_is_killed(service: Service) -> None:
    good = [f"ann {n} visa" for n in range(30)] + [f"bob {n} master" for n in range(30)]
    busy, expired = ["cat 1 busy", "dan 2 busy"], ["eve 3 expired", "ann 99 expired"]
    orders = good[:40] + busy + expired + good[40:]

    service.start("shop")
    service.order(*orders[:20])
    service.until(lambda: len(service.lines["shop"]) == 20)
    service.start("billing")
    service.start("shipping")
    service.until(lambda: len(service.said("billing", "charged")) >= 10)

    # Billing crashes in the middle, and the shop while others handle its orders.
    service.end("billing", signal.SIGKILL)
    service.start("billing")
    service.order(*orders[20:44])
    service.until(lambda: len(service.lines["shop"]) == 44)
    service.end("shop", signal.SIGKILL)
    service.start("shop")
    service.order(*orders[44:])
    service.until(lambda: _is_handled(service, orders, [*good, *busy]))
    service.until(lambda: all(service.said("billing", "refused")[order] >= 3 for order in expired))
    # What is printed may not be refused yet, and the shop has to write it down; Ctrl-C would come between.
    eventually(lambda: set(_dead_letters(service.path)) >= set(expired), "dead letters are stored")
    for part in ("billing", "shipping", "shop"):
        # As Ctrl-C.
        assert service.end(part, signal.SIGINT) == 0

    charged, refused = (service.said("billing", word) for word in ("charged", "refused"))
    assert set(charged) == {*good, *busy}
    # What was in hand when billing was killed may have been charged and not acknowledged.
    assert sum(charged[order] - 1 for order in good) <= 1
    assert set(refused) == {*busy, *expired}
    assert service.said("shipping", "shipped") == Counter(orders)
    for customer in ("ann", "bob"):
        of_one = [order for order in good if order.startswith(customer)]
        assert [order for order in charged if order in of_one] == of_one
    assert set(_dead_letters(service.path)) == set(expired)
    _check_reminders(service.path, orders)


def _is_handled(service: Service, orders: list[str], sound: list[str]) -> bool:
    return (
        service.said("billing", "charged").keys() >= set(sound)
        and service.said("shipping", "shipped").keys() >= set(orders)
        and service.said("shipping", "reminded of").keys() >= set(orders)
    )


def _dead_letters(path: Path) -> list[str]:
    """Return the orders that the command line shows as dead letters."""
    shown = subprocess.run(
        [sys.executable, "-m", "penstock", "dlq", "show", str(path), "billing", "--json"],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    ).stdout  # fmt: skip
    return [json.loads(line)["body"] for line in shown.splitlines()]


def _check_reminders(path: Path, orders: list[str]) -> None:
    """Check in the store that each reminder waited for a second."""
    with penstock.open(path, read_only=True) as store:
        reminders = [
            message
            for queue in store.topics()["reminders"]
            for message in store.scan("reminders", queue=queue)
        ]
    assert {message.body.decode() for message in reminders} == set(orders)
    assert all(message.store_time_ms - message.born_time_ms >= 1000 for message in reminders)


def test_it_has_less_than_sixty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
