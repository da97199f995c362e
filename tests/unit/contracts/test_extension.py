"""Extensions in a store: what is asked of them, when, and what happens if they refuse or fail."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.lanes import eventually

from penstock.contracts.extension import Extension, OpenStore, SummaryLine
from penstock.errors import (
    ConfigError,
    MessageError,
    PluginError,
    StoreClosedError,
    UnknownStrategyError,
)
from penstock.message import Message
from penstock.testing import open_store


class Noting(Extension):
    """Notes each call, and does what the test set."""

    name = "noting"
    calls: list[Any]
    rewrites: Any = None
    refused: str = ""

    def attach(self, store: OpenStore) -> None:
        self.calls = [("attach", store.read_only)]
        self.store = store

    def detach(self) -> None:
        self.calls.append("detach")

    def check_put(self, topic: str, queue: int) -> None:
        self.calls.append((topic, queue))
        if topic == self.refused:
            raise MessageError(f"no puts to {topic}")

    def rewrite(self, message: Message) -> Any:
        return self.rewrites(message) if self.rewrites else None


class Providing(Noting):
    """Also provides consumers."""

    name = "providing"
    provides = frozenset({"consumer"})

    def consumer(self, *given: Any, **options: Any) -> Any:
        return given, options


def opened(path: Path, *kinds: type[Extension], **more: Any) -> Any:
    return open_store(path, strategies=kinds, extensions=[kind.name for kind in kinds], **more)


def test_an_extension_is_attached_once_the_store_is_open_and_detached_before_it_closes(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "s", Noting) as store:
        noting = store.lowlevel.extension("noting")
        assert noting.calls == [("attach", False)]
        assert noting.store.path == store.path
        noting.detach = lambda: store.put("last", b"while detaching", queue=0)
    with opened(tmp_path / "s", Noting, read_only=True) as store:
        assert [m.body for m in store.scan("last")] == [b"while detaching"]
        noting = store.lowlevel.extension("noting")
    assert noting.calls == [("attach", True), "detach"]


def test_it_is_asked_once_a_queue_and_again_on_request(tmp_path: Path) -> None:
    with opened(tmp_path / "s", Noting) as store:
        noting = store.lowlevel.extension("noting")
        for _ in range(3):
            store.put("t", b"x", queue=0)
            store.put_many([Message("t", b"x", queue=0), Message("t", b"x", queue=1)])
        assert noting.calls[1:] == [("t", 0), ("t", 1)]
        store.lowlevel.recheck_puts("t")
        store.put("t", b"x", queue=0)
        assert noting.calls[3:] == [("t", 0)]
        assert store.max_offset("t", 0) == 7


def test_a_refused_put_stores_nothing_and_a_copy_is_not_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s", Noting) as store:
        store.lowlevel.extension("noting").refused = "secret"
        puts: list[Callable[[], object]] = [
            lambda: store.put("secret", b"x", queue=0),
            lambda: store.put_many([Message("t", b"x", queue=0), Message("secret", b"x", queue=0)]),
            lambda: store.put("secret", b"x", queue=0),
        ]
        for put in puts:
            with pytest.raises(MessageError, match="no puts to secret"):
                put()
        assert store.topics() == {}
        store.lowlevel.put_copies([(Message("secret", b"copy", queue=0), b"")])
        with pytest.raises(MessageError, match="no puts to secret"):
            store.put("secret", b"x", queue=0)
        assert [m.body for m in store.scan("secret")] == [b"copy"]


def test_the_first_extension_that_knows_a_request_rewrites_the_message(tmp_path: Path) -> None:
    with opened(tmp_path / "s", Noting, Providing) as store:
        store.lowlevel.extension("providing").rewrites = lambda m: m.__replace__(
            queue=5, partition_key=None, delay_level=0
        )
        receipts = [
            store.put("t", b"a", delay_level=1),
            store.put("t", b"b", partition_key="k"),
            store.submit("t", b"c", partition_key="k").result(10),
            *store.put_many([Message("t", b"d", delay_level=1), Message("t", b"e", queue=0)]),
        ]
        assert [each.queue for each in receipts] == [5, 5, 5, 5, 0]
        store.lowlevel.extension("noting").rewrites = lambda m: (
            Message("other", m.body, queue=0),
            b"TAGS\x01copy\x02",
        )
        store.put("t", b"f", partition_key="k")
        store.put_many([Message("t", b"g", queue=0, delay_level=2)])
        assert [(m.body, m.tag) for m in store.scan("other")] == [(b"f", "copy"), (b"g", "copy")]


def test_a_request_that_nobody_knows_or_that_is_not_met_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s", Noting) as store:
        for message in ({"delay_level": 3}, {"partition_key": "k"}):
            with pytest.raises(MessageError, match=r"extensions\.use"):
                store.put("t", b"x", **message)
            with pytest.raises(MessageError, match=r"extensions\.use") as caught:
                store.put_many([Message("t", b"x", **message)])
            assert "message 0" in caught.value.__notes__[0]
        store.lowlevel.extension("noting").rewrites = lambda m: m
        with pytest.raises(PluginError, match="still has"):
            store.put("t", b"x", delay_level=3)
        assert store.topics() == {}


def test_a_method_of_a_store_needs_an_extension_that_provides_it(tmp_path: Path) -> None:
    with opened(tmp_path / "s", Noting, Providing) as store:
        assert store.consumer("g", ["t"], tag="a") == (("g", ["t"]), {"tag": "a"})
        with pytest.raises(UnknownStrategyError, match="did you mean 'noting'"):
            store.lowlevel.extension("notin")
    with opened(tmp_path / "s", Noting) as store, pytest.raises(ConfigError, match="consumer"):
        store.consumer("g", ["t"])


def test_a_store_sums_up_what_its_extensions_say_and_why_one_cannot(tmp_path: Path) -> None:
    class Summing(Noting):
        """Says how many calls there were, unless the test breaks it."""

        name = "summing"
        trouble: Exception | None = None

        def summary(self) -> list[SummaryLine]:
            if self.trouble is not None:
                raise self.trouble
            return [SummaryLine("calls", "calls so far", "one", 1)]

    with opened(tmp_path / "s", Noting, Summing) as store:
        assert store.lowlevel.summary() == [("calls", "calls so far", "one", 1)]
        store.lowlevel.extension("summing").trouble = OSError("no disk")
        assert store.lowlevel.summary() == [("summing", "summing", "not known: no disk", None)]
    with opened(tmp_path / "s", Noting, Summing, read_only=True) as store:
        assert store.lowlevel.summary()[0].value == 1
    with pytest.raises(StoreClosedError):
        store.lowlevel.summary()


def test_a_store_whose_extension_fails_to_attach_is_closed_again(tmp_path: Path) -> None:
    class Failing(Noting):
        """Cannot attach."""

        name = "failing"

        def attach(self, store: OpenStore) -> None:
            super().attach(store)
            raise ConfigError("not today")

    with pytest.raises(ConfigError, match="not today"):
        opened(tmp_path / "s", Failing)
    with opened(tmp_path / "s", Noting) as store:
        assert store.recovery.state == "clean"


def test_an_extension_that_fails_to_detach_keeps_neither_the_others_nor_the_close(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store could never be closed: each close raised the extension's error again."""

    class Failing(Noting):
        """Cannot detach."""

        name = "failing"

        def detach(self) -> None:
            super().detach()
            raise AttributeError("no client")

    store = opened(tmp_path / "s", Noting, Failing)
    others = store.lowlevel.extension("noting")
    store.put("t", b"x", queue=0)
    store.close()
    assert others.calls[-1] == "detach"
    assert "extension 'failing' failed in detach" in caplog.text
    with opened(tmp_path / "s", Noting) as again:
        assert again.recovery.state == "clean"


def test_a_signal_handler_that_raises_while_an_extension_detaches_is_heard(tmp_path: Path) -> None:
    class Alarm(Exception):  # noqa: N818 - as a program calls it
        """What the handler raises."""

    class Slow(Noting):
        """Is interrupted when it is detached first."""

        name = "slow"
        signals: ClassVar = [signal.SIGUSR1]

        def detach(self) -> None:
            while self.signals:
                signal.raise_signal(self.signals.pop())

    def handle(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        store = opened(tmp_path / "s", Slow)
        with pytest.raises(Alarm):
            store.close()
        store.close()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_extension_that_cannot_say_whether_it_is_behind_keeps_no_retention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unsure(Noting):
        """Fails to say it."""

        name = "unsure"

        @property
        def is_behind(self) -> bool:
            raise ValueError("no")

    with open_store(tmp_path / "s", strategies=[Unsure], extensions=["unsure"]) as store:
        assert store.retain() == 0
        eventually(lambda: "extension 'unsure' failed in is_behind" in caplog.text)
