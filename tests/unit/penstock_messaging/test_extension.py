"""The extension `messaging` in a store."""

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.message import Message
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_messaging.configuration.parts import Configuration
from penstock_messaging.extension import MessagingExtension


def test_every_store_has_it_unless_it_is_configured_otherwise(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert isinstance(store.extension("messaging"), MessagingExtension)
    with open_store(tmp_path / "s", extensions=[]) as store:
        assert store.put("t", b"x").queue_offset == 0


def opened(folder: Path, default_queues: int) -> Store:
    given: dict[str, Any] = {"extensions.messaging.default_queues": default_queues}
    return open_store(folder / "s", spawn=ManualWorkers(), **given)


def test_options_have_limits(tmp_path: Path) -> None:
    for count in (0, 65_537):
        with pytest.raises(ConfigError, match="default_queues"):
            opened(tmp_path, count)
    with opened(tmp_path, 7) as store:
        store.put("t", b"x")
        assert store.topic_configs()["t"].queues == 7


def test_a_delayed_message_is_left_to_the_kernel(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        extension = store.extension("messaging")
        assert extension.rewrite(Message("t", b"x", delay_level=1, queue=None)) is None


def test_a_configuration_that_a_signal_handler_has_read_first_is_the_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A handler puts while the main thread reads the configuration: what it creates must not be lost."""
    with open_store(tmp_path / "s", spawn=ManualWorkers()) as store:
        extension = store.extension("messaging")
        assert isinstance(extension, MessagingExtension)
        begin = Configuration.begin

        def interrupted(self: Configuration) -> None:
            monkeypatch.setattr(Configuration, "begin", begin)
            store.put("handler", b"x")
            begin(self)

        monkeypatch.setattr(Configuration, "begin", interrupted)
        store.put("main", b"x")
        assert list(store.topic_configs()) == ["handler", "main"]
    with open_store(tmp_path / "s", read_only=True) as reader:
        assert list(reader.topic_configs()) == ["handler", "main"]
