"""`Consumer.run`: calls a function for each message, in several threads."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from penstock.contracts import SpawnWorker
from penstock.errors import ConsumerClosedError, LostQueueError
from penstock.escape import get_logger
from penstock_messaging.consuming.consumed_message import LATE, OUT, HandedMessage
from penstock_messaging.consuming.in_flight import Handling

if TYPE_CHECKING:
    from penstock_messaging.consuming.consumer import GroupConsumer

logger = get_logger(__name__)

# A thread of the store that is in one step for long is reported as one that hangs.
_POLL_S = 1.0


# The signals by which a person and a service manager end a program, with what they do by default.
_ENDING: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


@contextlib.contextmanager
def _signals_call(end: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM call `end`, unless the program handles them itself, or this is not its main thread."""
    # The thread in which handlers of signals run, which a forked child has of its own.
    thread = threading.get_native_id()
    mine: list[signal.Signals] = []

    def restore() -> None:
        for number in mine:
            signal.signal(number, _ENDING[number])

    def caught(number: int, frame: object) -> None:
        # The second one does what it always does.
        restore()
        if threading.get_native_id() == thread:
            end()
        else:
            signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread():
        mine = [each for each, usual in _ENDING.items() if signal.getsignal(each) == usual]
    try:
        for number in mine:
            signal.signal(number, caught)
        yield
    finally:
        restore()


class HandlerRun:
    """One call of `Consumer.run`. Safe from any thread.

    Attributes:
        failure: why it ended, if neither by `end` nor by the consumer's close.
    """

    def __init__(
        self,
        consumer: "GroupConsumer",
        handler: Callable[[HandedMessage], object],
        by: Handling,
        spawn: SpawnWorker,
        count: int,
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._by = by
        self._spawn = spawn
        self._count = count
        self._is_ending = False
        # Unlike an event, a signal handler may put into it while the same thread waits.
        self._ending: SimpleQueue[None] = SimpleQueue()
        self._ended = threading.Event()
        self._own_threads = {threading.get_ident()}
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Start the threads, and wait until they are to end; raises what ended them."""
        workers = []
        try:
            with _signals_call(self._request_end):
                for number in range(self._count):
                    name = f"penstock-handler-{self._consumer.group}-{number}"
                    workers.append(self._spawn(name, self._step))
                while not self._is_ending:
                    # Not for ever: a signal that comes just before this waits, or in another thread, does not end it,
                    # and Python calls the handlers of signals in this thread only.
                    with contextlib.suppress(Empty):
                        self._ending.get(timeout=_POLL_S)
        finally:
            self._request_end()
            try:
                for worker in workers:
                    # Waits for the message that is being handled.
                    worker.stop()
            finally:
                self._ended.set()
        if self.failure is not None:
            raise self.failure

    def _request_end(self) -> None:
        self._is_ending = True
        self._ending.put(None)
        self._consumer.rouse()

    def end(self) -> bool:
        """Make the threads end after the messages they have; return False in one of these, which cannot `wait`."""
        self._request_end()
        return threading.get_ident() not in self._own_threads

    def wait(self) -> None:
        """Wait for the end of the threads."""
        self._ended.wait()

    def _step(self) -> float | None:
        self._own_threads.add(threading.get_ident())
        try:
            if not self._is_ending:
                for message in self._consumer.poll_for(self._by, _POLL_S):
                    self._handle(message)
        except ConsumerClosedError:
            self._request_end()
        except BaseException as error:
            self.failure = self.failure or error
            self._request_end()
        return None if self._is_ending else 0

    def _handle(self, message: HandedMessage) -> None:
        """Call the handler; ack or nack the message, also if its time is over, unless the handler has answered it."""
        try:
            try:
                self._handler(message)
            except Exception as error:
                logger.warning(
                    "the handler of group %s raised an exception: message %d of %s, queue %d is nacked",
                    self._consumer.group, message.offset, message.topic, message.queue, exc_info=True,
                )  # fmt: skip
                if message.state in (OUT, LATE):
                    self._consumer.nack(message, reason=error)
            else:
                if message.state in (OUT, LATE):
                    self._consumer.ack(message)
        except LostQueueError as error:
            # Another member has the queue, and gets the message.
            logger.info("%s", error)
        finally:
            # A message that is part of a transaction may be given back later: then its time counts as of any other.
            message.by = None
