"""The test suite for the contract of an extension."""

from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Extension
from penstock.errors import MessageError
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing.control import ManualWorkers
from penstock.testing.kit import messages, open_store
from penstock.testing.suites.base import ContractSuite

COUNT = 60

# What a message may request besides to be stored.
REQUESTS: tuple[dict[str, Any], ...] = (
    {"partition_key": "k"},
    {"queue": 0, "delay_level": 3},
    {"queue": 0, "delay": 5},
    {"queue": 0, "deliver_at": 4_000_000_000},
)


class ExtensionContract(ContractSuite):
    """Subclass this and return your extension's class from `strategy`."""

    contract = Extension

    @staticmethod
    def opened(
        strategy: type[Extension], options: dict[str, Any], path: Path, **more: Any
    ) -> tuple[Store, ManualWorkers]:
        """Return a small store with the extension, and its background workers."""
        given = {f"extensions.{strategy.name}.{key}": value for key, value in options.items()}
        workers = ManualWorkers()
        chosen: dict[str, Any] = {"extensions": [strategy.name], **given, **more}
        return open_store(path, strategies=[strategy], spawn=workers, **chosen), workers

    def test_a_store_with_it_keeps_every_message(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Plain messages are stored unchanged, in order, and are there after the store was closed and opened again."""
        sent = messages(COUNT)
        store, workers = self.opened(strategy, options, tmp_path / "s")
        with store:
            store.put_many(sent[: COUNT // 2])
            workers.run_all()
            for message in sent[COUNT // 2 :]:
                store.put(
                    message.topic,
                    message.body,
                    queue=message.queue,
                    tag=message.tag,
                    keys=message.keys,
                )
            workers.run_all()
        store, workers = self.opened(strategy, options, tmp_path / "s")
        with store:
            workers.run_all()
            for topic in {message.topic for message in sent}:
                wanted = [message.body for message in sent if message.topic == topic]
                assert [found.body for found in store.scan(topic)] == wanted
            assert not list(store.verify())

    def test_a_store_is_read_with_it(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """A store that another process writes is opened read-only, and closed, while that process goes on."""
        writer, workers = self.opened(strategy, options, tmp_path / "s")
        with writer:
            writer.put_many(messages(COUNT))
            workers.run_all()
            reader, reading = self.opened(strategy, options, tmp_path / "s", read_only=True)
            with reader:
                reading.run_all()
                assert reader.topics() == writer.topics()
            writer.put("t", b"after")
            workers.run_all()

    def test_it_can_be_detached_twice(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """`detach` may be called again: the close of a store may be interrupted, and repeated."""
        store, _ = self.opened(strategy, options, tmp_path / "s")
        extension = store.lowlevel.extension(strategy.name)
        extension.detach()
        extension.detach()
        store.close()

    def test_it_rewrites_to_plain_messages_or_not_at_all(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """What `rewrite` returns has a queue number, and requests nothing more."""
        store, _ = self.opened(strategy, options, tmp_path / "s")
        with store:
            extension = store.lowlevel.extension(strategy.name)
            for requests in REQUESTS:
                try:
                    made = extension.rewrite(Message("t", b"x", **requests))
                except MessageError:
                    continue
                if made is None:
                    continue
                message = made[0] if isinstance(made, tuple) else made
                assert isinstance(message.queue, int)
                assert (message.partition_key, message.delay_level) == (None, 0)
                assert (message.delay, message.deliver_at) == (0, None)

    def test_it_provides_what_it_says(self, strategy: type[Extension]) -> None:
        """Every name in `provides` is a public method of `Store` and of the extension."""
        for name in strategy.provides:
            assert callable(getattr(Store, name)), name
            assert callable(getattr(strategy, name)), name

    @pytest.mark.parametrize(
        "call", ["check_put", "queues_of", "rewrite", "attach", "detach", "summary", "stats"]
    )
    def test_it_has_the_methods_of_the_contract(self, strategy: type[Extension], call: str) -> None:
        """No method of the contract is replaced by something that cannot be called."""
        assert callable(getattr(strategy, call))
