"""The order service of `examples/orders`, in processes of its own that are killed and started again."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

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

    def end(self, part: str, how: str) -> int:
        """End a part: `kill` as a crash does, `send_signal` as Ctrl-C does; return its exit status."""
        process = self._running.pop(part)
        getattr(process, how)(*((2,) if how == "send_signal" else ()))
        status = process.wait(PATIENCE_S)
        self._readers.pop(part).join()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return status

    def close(self) -> None:
        for part in list(self._running):
            self.end(part, "kill")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "data")
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.kill
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

    # Billing crashes in the middle, and the shop with half of the orders in flight.
    service.end("billing", "kill")
    service.start("billing")
    service.order(*orders[20:44])
    service.until(lambda: len(service.lines["shop"]) == 44)
    service.end("shop", "kill")
    service.start("shop")
    service.order(*orders[44:])

    def is_over() -> bool:
        charged, refused = service.said("billing", "charged"), service.said("billing", "refused")
        return (
            set(charged) == {*good, *busy}
            and all(refused[f"{order} expired"] >= 3 for order in expired)
            and set(service.said("shipping", "shipped")) == set(orders)
            and set(service.said("shipping", "reminded of")) == set(orders)
        )

    service.until(is_over)
    assert service.end("billing", "send_signal") == 0
    assert service.end("shipping", "send_signal") == 0
    assert service.end("shop", "send_signal") == 0
    _check_counts(service, good, orders)
    _check_store(service.path, orders, expired)
