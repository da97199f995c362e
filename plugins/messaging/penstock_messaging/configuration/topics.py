"""The topics of a store, in `config/topics.json` as brokers keep them.

A topic is declared (`create`, or by a broker), or created by its first message (`ensure`). A declared one has the
number of queues that its entry says; the other has `default_queues`, more if copies need them, and its entry is saved a
second later: if the process is killed before, the next open for writing finds the topic in the queue index (`adopt`).

An entry that cannot be understood (a count that is no number) is set aside: it stays in the file as it is, and its
topic takes messages as if it had no configuration.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from penstock.contracts import NO_HISTORY, Context, History, OpenStore, TopicConfig, TopicOptions
from penstock.errors import (
    ArgumentError,
    ReadOnlyError,
    StorageError,
    StoreClosedError,
    TopicError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.escape import get_logger, near, shown
from penstock.format import arguments
from penstock.format.names import FORBIDDEN_TOPICS, QUEUE_MAX
from penstock_messaging.configuration.auto_topics import AutoTopics
from penstock_messaging.configuration.broker_files import BrokerFile
from penstock_messaging.configuration.broker_json import in_bean_order
from penstock_messaging.configuration.config_table import ConfigTable

logger = get_logger(__name__)

READ_WRITE = 6
# The sum of all bits that a new configuration may have; 1 is for topics after which a broker creates others.
_PERM_MAX = 7
_NAMED_MAX = 5
# A log offset that no log reaches.
_FAR = (1 << 62) - 1
INT32_MAX = (1 << 31) - 1
# A broker declares this one by itself; `contracts.foreign` recognises brokers by it.
_OF_BROKERS_ONLY = "SELF_TEST_TOPIC"
# Light message queues have no configuration.
_LIGHT = "%LMQ%"
_SCHEDULE, _DELAY_LEVELS = "SCHEDULE_TOPIC_XXXX", 18
_SYSTEM = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "rmq_sys_", "TRANS_CHECK_")
# Attributes that decide which files a topic has; only the defaults can be stored here.
_FIXED = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
_DEFAULTS: dict[str, Any] = {
    "order": False, "perm": READ_WRITE, "readQueueNums": 16, "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0, "writeQueueNums": 16,
}  # fmt: skip


if TYPE_CHECKING:

    class TopicRemover(OpenStore, Protocol):
        """A store that can delete a topic's queues."""

        def remove_topic(self, topic: str) -> None:
            """Delete the queues of a topic so that no recovery brings them back."""


class TopicConfigs:
    """The configurations of a store's topics. Safe from any thread; one process writes.

    In a store that is opened read-only, the file is read again whenever it has changed.
    """

    def __init__(
        self,
        context: Context,
        *,
        default_queues: int,
        auto_create: bool,
        on_change: Callable[[], None] = lambda: None,
        on_recheck: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        """Nothing is read until `load`.

        Args:
            context: of the extension.
            default_queues: how many queues a topic gets that is created without a number.
            auto_create: messages create topics.
            on_change: called after a change that `save` has to write.
            on_recheck: called with a topic whose configuration has changed.
        """
        self._context = context
        self._default_queues = default_queues
        self.auto_create = auto_create
        self._on_change = on_change
        self._on_recheck = on_recheck
        self._auto_file = AutoTopics(context)
        file = BrokerFile(context, "topics.json", "topicConfigTable")
        self._table = ConfigTable(file, self._save_auto)
        self._auto: dict[str, int] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._aside: dict[str, str] = {}
        self._mark: tuple[int, int] | None = None
        self._deleting: set[str] = set()
        # Topics with messages that are not listed, in a directory that a broker has written, too: see `adopt`.
        self._unlisted: set[str] = set()
        self._is_shared = False
        self._guard = threading.RLock()

    # --- the file

    def load(self) -> None:
        """Read the files, and log what is not understood."""
        mark = self._table.file.mark()
        self._table.load()
        self._auto = self._auto_file.load()
        configs: dict[str, TopicConfig] = {}
        aside: dict[str, str] = {}
        for name, entry in self._table.entries.items():
            try:
                configs[name] = self._with_origin(config_of(name, entry))
            except ValueError as error:
                aside[name] = str(error)
        self._configs, self._aside, self._mark = configs, aside, mark
        for remark in self.remarks():
            logger.warning("%s", remark)

    def _with_origin(self, config: TopicConfig) -> TopicConfig:
        """Return a configuration that says whether messages created its topic, unchanged by a broker since."""
        given = self._auto.get(config.topic, 0)
        is_auto = config.perm == READ_WRITE and max(config[1:3]) <= given
        return config._replace(is_auto=True) if is_auto else config

    def remarks(self) -> list[str]:
        """Return one sentence for each problem with the file."""
        path, problem = self._table.file.path, self._table.file.problem
        found = [] if problem is None else [
            f"{problem}. Until then, topics are not saved, and "
            + ("those of its .bak are used" if self._table.file.exists else "none is known")
        ]  # fmt: skip
        return found + [
            f"{path}: the entry of topic {shown(name)} is not used, since {why}; it stays in the file"
            for name, why in self._aside.items()
        ]

    def save(self) -> None:
        """Write what `ensure` has changed; raises `OSError` or `StorageError`."""
        self._table.save()

    def _save_auto(self) -> None:
        self._auto_file.save(dict(self._auto))

    def _refresh(self) -> None:
        """Read the files if they have not been read, or if another process may have changed them."""
        if self._mark is None or (self._context.read_only and self._table.file.mark() != self._mark):  # fmt: skip
            self.load()

    def _check_writable(self) -> None:
        """Raise `ReadOnlyError` in a reader; called before any change."""
        if self._context.read_only:
            raise ReadOnlyError
        self._refresh()

    # --- looking up

    def get(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic; None if it has none."""
        self._refresh()
        return self._configs.get(topic)

    def all(self) -> dict[str, TopicConfig]:
        """Return the configurations of all topics that have one, sorted by name."""
        self._refresh()
        return dict(sorted(self._configs.items()))

    def has_none(self, topic: str) -> bool:
        """Return whether messages give a topic no configuration: a light queue's, or one for a person to decide."""
        self._refresh()
        return topic.startswith(_LIGHT) or topic in self._aside or topic in self._unlisted

    def is_being_deleted(self, topic: str) -> bool:
        """Return whether `delete` is at work on a topic."""
        return topic in self._deleting

    # --- topics that messages create

    def ensure(self, topic: str, queue: int = 0) -> TopicConfig | None:
        """Return the configuration of a topic, created if missing, and grown to include a queue if messages created it.

        For callers that store copies, to topics such as `%RETRY%billing`, and messages whose queues were picked
        elsewhere. The change is saved later. None for a topic that never has one. Raises `ReadOnlyError` in a reader.
        """
        self._check_writable()
        with self._guard:
            found = self._configs.get(topic)
            if self.has_none(topic) or (found is not None and (queue < found.queues or not found.is_auto)):  # fmt: skip
                return found
            count = max(queue + 1, self.queues_of_new(topic) if found is None else found.queues)
            made = TopicConfig(topic, count, count, is_auto=True)
            # In this order: a topic that is to be saved is one of those.
            self._auto[topic] = count
            self._configs[topic] = made
            self._table.set_later(topic, self._entry(made))
        self._on_change()
        self._on_recheck(topic)
        if found is None and self._is_shared:
            # Not later: if a killed process has not listed a topic, nobody knows whether a broker has deleted it.
            with contextlib.suppress(OSError, StorageError):
                self._table.save()
        return made

    def queues_of_new(self, topic: str) -> int:
        """Return how many queues a topic gets when a message creates it."""
        if topic == _SCHEDULE:
            return _DELAY_LEVELS
        return 1 if topic.startswith(_SYSTEM) else self._default_queues

    def adopt(self, store: OpenStore, read_history: Callable[[], History]) -> None:
        """Add the queue index's topics that the file lacks, and queues beyond those of a topic that messages created.

        They come from a process that was killed. In a directory that a broker has
        written, too, a topic that the file lacks may be one that the broker has deleted while Penstock's messages in it
        were kept: listing it would bring back the others. There it stays without a configuration until it is declared.
        """
        self._check_writable()
        history = read_history() if self._table.file.exists else NO_HISTORY
        if self._table.file.exists:
            self._is_shared = not history.is_one_run(self._context.log_min_offset(), _FAR)
        for topic, queues in store.topics(system=True).items():
            if topic in self._configs:
                self.ensure(topic, max(queues))
            elif topic == _OF_BROKERS_ONLY or self.has_none(topic):
                continue
            elif self._is_shared and history.is_unlisted(topic) and topic not in history.removed:
                self._unlisted.add(topic)
            else:
                self.ensure(topic, max(queues))
        if self._unlisted:
            logger.warning(
                "%s lacks topics that have messages: %s. A broker may have deleted them, so they are not added; "
                "`penstock topic create` adds "
                "one", self._table.file.path, ", ".join(map(shown, sorted(self._unlisted)[:_NAMED_MAX])),
            )  # fmt: skip

    # --- declared topics

    def create(self, topic: str, **options: Unpack[TopicOptions]) -> TopicConfig:
        """Declare a topic; see `Store.create_topic`."""
        self._check_writable()
        given = _checked(call := "create_topic", options)
        _check_name(topic, "created")
        if topic in self._configs or topic in self._aside:
            how = "; its first message created it" if topic in self._auto else ""
            raise TopicExistsError(topic, f"there is a topic of that name already{how}. To change it, use "
                "Store.alter_topic or `penstock topic alter`")  # fmt: skip
        if topic.startswith(_LIGHT):
            raise TopicError(topic,
                f"names with {_LIGHT} are those of light message queues, which are not declared")  # fmt: skip
        write_queues = given.get("write_queues")
        count = given.get("queues") or max(self._default_queues, write_queues or 0)
        made = TopicConfig(
            topic, count, write_queues or count, given.get("perm", READ_WRITE),
            attributes=_attributes(call, {}, given.get("attributes", {})),
        )  # fmt: skip
        self._declare(call, made)
        return made

    def alter(self, topic: str, **options: Unpack[TopicOptions]) -> TopicConfig:
        """Change the configuration of a topic; see `Store.alter_topic`."""
        self._check_writable()
        given = _checked(call := "alter_topic", options)
        found = self._configs.get(topic)
        if found is None:
            raise self._unknown(topic)
        queues, write_queues = given.get("queues"), given.get("write_queues")
        made = found._replace(
            read_queues=queues or found.read_queues,
            write_queues=write_queues or queues or found.write_queues,
            perm=given.get("perm", found.perm),
            attributes=_attributes(call, found.attributes, given.get("attributes", {})),
            is_auto=False,
        )
        self._declare(call, made, checks_count=bool(queues or write_queues))
        return made

    def _declare(self, call: str, made: TopicConfig, *, checks_count: bool = True) -> None:
        if checks_count and made.write_queues > made.read_queues:
            expected = f"at most the number of queues that consumers read, {made.read_queues}"
            raise ArgumentError(call, "write_queues", made.write_queues, expected)
        with self._guard:
            entry = self._entry(made)
        self._table.set_now(made.topic, entry)
        with self._guard:
            self._configs[made.topic] = made
            self._unlisted.discard(made.topic)
        self._on_recheck(made.topic)
        self._forget_auto(made.topic)

    def _forget_auto(self, topic: str) -> None:
        queues = self._auto.pop(topic, None)
        if queues is not None:
            try:
                self._save_auto()
            except BaseException:
                self._auto[topic] = queues
                raise

    def _entry(self, config: TopicConfig) -> dict[str, object]:
        """Return the entry of a configuration; fields that this version does not know are kept."""
        known = self._table.entries.get(config.topic)
        before: dict[str, object] = known if isinstance(known, dict) else _DEFAULTS
        entry = {
            **before, "topicName": config.topic, "perm": config.perm, "order": config.order,
            "readQueueNums": config.read_queues, "writeQueueNums": config.write_queues,
        }  # fmt: skip
        if config.attributes or "attributes" in before or self._table.file.has_attributes:
            entry["attributes"] = dict(config.attributes)
        return in_bean_order(entry)

    def _unknown(self, topic: str) -> UnknownTopicError:
        if topic in self._aside:
            path, why = self._table.file.path, self._aside[topic]
            reason = f": its entry in {path} cannot be understood ({why}); correct it there while the store is closed"
        else:
            reason = near(topic, self._table.entries) or "; `penstock topic list` shows all"
        return UnknownTopicError(
            topic, f"{reason}{'' if reason[-1] == '?' else '.'} Nothing was changed"
        )

    # --- deleting

    def delete(self, topic: str, store: "TopicRemover") -> None:
        """Delete a topic; see `Store.delete_topic`.

        The queues go first, durably: after a crash, a topic still listed has no messages, and can be deleted again.
        """
        self._check_writable()
        _check_name(topic, "deleted")
        if topic not in self._table.entries and topic not in store.topics(system=True):
            raise self._unknown(topic)
        # Before anything is changed.
        self._table.file.check_replaceable()
        store.groups(system=True)
        with self._refusing_puts(topic, store):
            store.remove_topic(topic)
            self._table.set_now(topic, None)
            with self._guard:
                self._configs.pop(topic, None)
                self._aside.pop(topic, None)
                self._unlisted.discard(topic)
            self._forget_auto(topic)

    @contextlib.contextmanager
    def _refusing_puts(self, topic: str, store: "TopicRemover") -> Iterator[None]:
        self._deleting.add(topic)
        try:
            store.recheck_puts(topic)
            yield
        finally:
            self._deleting.discard(topic)
            # A signal handler may have closed the store, and then ends the program.
            with contextlib.suppress(StoreClosedError):
                store.recheck_puts(topic)


def _check_name(topic: str, what: str) -> None:
    """Raise `TopicError` for a topic that belongs to the broker itself."""
    if topic in FORBIDDEN_TOPICS:
        raise TopicError(topic, f"RocketMQ reserves that name for its own messages; it cannot be {what}, and nothing "
            "was changed")  # fmt: skip


_COUNT = partial(arguments.whole, low=1, high=QUEUE_MAX + 1)
_CHECKS: dict[str, Callable[[str, str, Any], Any]] = {
    "queues": _COUNT,
    "write_queues": _COUNT,
    "perm": partial(arguments.whole, high=_PERM_MAX),
    "attributes": arguments.mapping,
}


def _checked(call: str, options: TopicOptions) -> dict[str, Any]:
    """Return the options that are not None; raises `ArgumentError` for an unknown one and for a wrong value."""
    for name, value in options.items():
        if name not in _CHECKS:
            expected = f"one of the options of a topic: {', '.join(_CHECKS)}{near(name, _CHECKS)}"
            raise ArgumentError(call, name, value, expected)
    given = {name: value for name, value in options.items() if value is not None}
    return {name: _CHECKS[name](call, name, value) for name, value in given.items()}


def _attributes(
    call: str, before: Mapping[str, str], changes: Mapping[str, str]
) -> Mapping[str, str]:
    for name, value in changes.items():
        if not name:
            raise ArgumentError(call, "attributes", dict(changes), "a mapping without an empty name")  # fmt: skip
        if value and value != _FIXED.get(name, value):
            expected = f"a mapping in which {name} is {_FIXED[name]}: Penstock stores no other kind"
            raise ArgumentError(call, "attributes", dict(changes), expected)
    return MappingProxyType({k: v for k, v in sorted({**before, **changes}.items()) if v})


def config_of(topic: str, entry: object) -> TopicConfig:
    """Return the configuration in an entry of the file; missing fields have a broker's defaults.

    Raises `ValueError`, with the reason, if it cannot be understood.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{shown(entry)} is not a JSON object")  # noqa: TRY004 - callers handle both alike
    fields = {**_DEFAULTS, **{name: value for name, value in entry.items() if value is not None}}
    for name in ("readQueueNums", "writeQueueNums", "perm"):
        if type(fields[name]) is not int or not 0 <= fields[name] <= INT32_MAX:
            raise ValueError(f"{name} is {shown(fields[name])}")
    attributes = fields.get("attributes", {})
    if not isinstance(attributes, dict) or not all(isinstance(v, str) for v in attributes.values()):
        raise ValueError(f"attributes is {shown(attributes)}")
    return TopicConfig(
        topic, fields["readQueueNums"], fields["writeQueueNums"], fields["perm"],
        fields["order"] is True, MappingProxyType(attributes),
    )  # fmt: skip
