"""The extension `messaging`: puts together what this package adds to a store.

Every process that opens a store imports this module, and many need no more of it than that a topic takes puts. So each
part is imported and made at its first use.
"""

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import attrs

from penstock import Message, StoredMessage
from penstock.contracts import (
    MS_MAX,
    SIDE_FOLDER,
    Consumer,
    ConsumerOptions,
    Context,
    DelayedMessage,
    Extension,
    OpenStore,
    Prepared,
    Stoppable,
    SummaryLine,
    TopicConfig,
    Transaction,
    WorkWakes,
    limits,
)
from penstock.contracts.dispatcher import Finding
from penstock.errors import CorruptionError, MessageError, PenstockError, StoreClosedError
from penstock.escape import get_logger, near
from penstock.format.names import LOST_END
from penstock_messaging.groups.store_id import ensure_store_id

if TYPE_CHECKING:
    from penstock_messaging.configuration.parts import Configuration
    from penstock_messaging.consuming.open_consumers import OpenConsumers
    from penstock_messaging.delays.delivery import Delivery
    from penstock_messaging.groups.fold import Range
    from penstock_messaging.groups.intake import Intake
    from penstock_messaging.groups.position import GroupProgress
    from penstock_messaging.groups.taking import Groups
    from penstock_messaging.prepared.check_back import Checking
    from penstock_messaging.prepared.half_queue import OpenHalf
    from penstock_messaging.prepared.open_halves import OpenHalves
    from penstock_messaging.timers.timer_delivery import TimerDelivery
    from penstock_messaging.transactions.batch import BatchTransaction
    from penstock_messaging.transactions.decided_acks import DecidedElsewhere
    from penstock_messaging.transactions.deciding import Deciding

logger = get_logger(__name__)

# Queues of a topic that a message creates: as many as a RocketMQ producer asks for.
_DEFAULT_QUEUES = 4
_QUEUES_MAX = 65_536
_SCHEDULE_TOPIC, _TIMER_TOPIC = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
# As RocketMQ's `timerMaxDelaySec`.
_DELAY_MAX_MS = 3 * 24 * 3_600_000
_CHECKS_MAX = 1_000_000
_HALF_TOPIC, _HALF_GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"
_DELIVERIES = ("config/delayOffset.json", "config/delayOffset.json.bak", "config/timercheck")
# How often it is tried again to take in the answers of consumers.
INTERVAL_S = 1.0


def _one_of(*words: str) -> Callable[[object, "attrs.Attribute[Any]", Any], None]:
    """Return a validator that refuses all but these words."""

    def check(_instance: object, field: "attrs.Attribute[Any]", value: Any) -> None:
        if value not in words:
            listed = " or ".join(f'"{word}"' for word in words)
            raise ValueError(f"{field.name} is {value!r}; it must be {listed}")

    return check


def _oldest_first(halves: "Iterable[OpenHalf]") -> "list[OpenHalf]":
    """Return half messages by age: a check moves one to the end of its queue."""
    return sorted(halves, key=lambda half: half.born_time_ms)


@attrs.frozen(kw_only=True)
class MessagingOptions:
    """Options of the extension `messaging`.

    Attributes:
        auto_create_topics: a message to an unknown topic creates it; imports and Spark sinks add queues to such a
            topic. If false, messages to unknown topics are refused.
        default_queues: how many queues a new topic has unless a number is given.
        delay_save_ms: how long after the delivery of a delayed message `delayOffset.json` is written at the latest. A
            broker that takes over after a kill delivers again at most that time's messages; each write flushes the log.
        timers: "on" takes messages with `delay` and `deliver_at`; "refuse" does not: for a directory that a broker of
            4.x takes over, which cannot deliver them.
        delay_max_ms: the longest delay by `delay` or `deliver_at`, by default three days, as in a broker.
        check_interval_ms: how long after a check-back that did not know the answer a prepared message is checked again.
        check_immunity_ms: how old a prepared message is when it is first checked; its property
            `CHECK_IMMUNITY_TIME_IN_SECONDS` takes precedence. Give your transactions enough time to end.
        checks_max: how often a prepared message is checked before it goes to `TRANS_CHECK_MAX_TIME_TOPIC`.
    """

    auto_create_topics: bool = True
    default_queues: int = attrs.field(default=_DEFAULT_QUEUES, validator=limits(1, _QUEUES_MAX))
    delay_save_ms: int = attrs.field(default=1000, validator=limits(1, MS_MAX))
    timers: str = attrs.field(default="on", validator=_one_of("on", "refuse"))
    delay_max_ms: int = attrs.field(default=_DELAY_MAX_MS, validator=limits(1, MS_MAX))
    check_interval_ms: int = attrs.field(default=30_000, validator=limits(1, MS_MAX))
    check_immunity_ms: int = attrs.field(default=6000, validator=limits(0, MS_MAX))
    checks_max: int = attrs.field(default=15, validator=limits(1, _CHECKS_MAX))


class MessagingExtension(Extension):
    """Consumers, retries, delays, prepared messages, and the configuration of topics and groups."""

    name = "messaging"
    Options = MessagingOptions
    # `properties_text.COPY_BYTES`, and some more; a test compares them.
    record_reserve = 1440
    provides = frozenset({
        "consumer", "delete_group", "create_topic", "alter_topic", "delete_topic", "topic_configs",
        "transaction", "cancel_delayed", "delayed", "prepare", "prepared",
    })  # fmt: skip
    callbacks = frozenset({"check_back"})
    options: MessagingOptions

    def __init__(self, options: MessagingOptions, context: Context, functions: Mapping[str, Any]) -> None:  # fmt: skip
        super().__init__(options, context, functions)
        # A signal handler may put while a part is being made.
        self._lock = threading.RLock()
        self._store: OpenStore | None = None
        self._parts: dict[str, Any] = {}
        # Held while answers are taken in, and while a topic is deleted: no offset of it must be committed afterwards.
        self._taking = threading.RLock()
        self._watcher: Stoppable | None = None
        self._wakes: WorkWakes
        self._trouble = ""
        # The log offsets of messages that could not be delivered and are kept: their round may be done again.
        self._kept: set[int] = set()

    # --- the parts

    def _part(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a part, made at its first use; of two that are made at the same time, the first one counts."""
        found = self._parts.get(name)
        if found is None:
            with self._lock:
                made = self._parts.get(name) or make()
                # A signal handler may have been faster.
                found = self._parts.setdefault(name, made)
        return found

    @property
    def store(self) -> OpenStore:
        """The open store; raises `StoreClosedError` after its end."""
        if self._store is None:
            raise StoreClosedError
        return self._store

    @property
    def configuration(self) -> "Configuration":
        """The topics and groups."""

        def make() -> "Configuration":
            from penstock_messaging.configuration.parts import Configuration  # noqa: PLC0415 - see the module

            made = Configuration(
                self.context, self.store, default_queues=self.options.default_queues,
                auto_create=self.options.auto_create_topics,
            )  # fmt: skip
            if not self.context.read_only:
                made.begin()
            return made

        found: Configuration = self._part("configuration", make)
        return found

    @property
    def groups(self) -> "Groups":
        """The consumer groups: their positions, and who has which queue."""

        def make() -> "Groups":
            from penstock_messaging.groups.taking import Groups  # noqa: PLC0415 - see the module

            made = Groups(self.context, self.store, generation=self.store.topic_generation)
            if self.context.read_only:
                made.decided = self._decided_elsewhere.ranges
            else:
                made.on_refused = self._wake_intake
                made.decided = self._decided
            return made

        found: Groups = self._part("groups", make)
        return found

    @property
    def _decided_elsewhere(self) -> "DecidedElsewhere":
        from penstock_messaging.transactions.decided_acks import DecidedElsewhere  # noqa: PLC0415 - see the module

        return DecidedElsewhere(self.context.files, self.context.root)

    def _decided(
        self, group: str, topic: str, queue: int, resolved: "GroupProgress"
    ) -> "Sequence[Range] | None":
        """Return what transactions have decided about a queue that its journal lacks: nothing, if there were none."""
        known: Deciding | None = self._parts.get("deciding")
        return () if known is None else known.ranges(group, topic, queue, resolved)

    @property
    def deciding(self) -> "Deciding":
        """The decisions of transactions; only where the store is open for writing."""

        def make() -> "Deciding":
            from penstock_messaging.transactions.deciding import Deciding  # noqa: PLC0415 - see the module

            return Deciding(self.context, self.store, lambda: self.groups, self._wake_intake)

        found: Deciding = self._part("deciding", make)
        return found

    @property
    def delivery(self) -> "Delivery":
        """The service that delivers delayed messages."""

        def make() -> "Delivery":
            from penstock_messaging.delays.delivery import Delivery  # noqa: PLC0415 - see the module

            made = Delivery(
                self.context, save_ms=self.options.delay_save_ms, check=self._check_delivery,
                keep=self._keep_undelivered,
            )  # fmt: skip
            if not self.context.read_only:
                made.attach(self.store)
            return made

        found: Delivery = self._part("delivery", make)
        return found

    @property
    def timers(self) -> "TimerDelivery":
        """The service that delivers messages at any time."""

        def make() -> "TimerDelivery":
            from penstock_messaging.timers.timer_delivery import TimerDelivery  # noqa: PLC0415 - see the module

            made = TimerDelivery(self.context, check=self._check_delivery, keep=self._keep_undelivered)  # fmt: skip
            made.attach(self.store)
            return made

        found: TimerDelivery = self._part("timers", make)
        return found

    def _has_timers(self) -> bool:
        return self.store.max_offset(_TIMER_TOPIC, 0) > 0

    @property
    def _intake(self) -> "Intake":
        """The service that takes in what consumers have answered; only where the store is open for writing."""

        def make() -> "Intake":
            from penstock_messaging.groups.intake import Intake  # noqa: PLC0415 - see the module
            from penstock_messaging.retries.stored_retries import StoredRetries  # noqa: PLC0415 - see the module

            retries = StoredRetries(self.configuration, self.delivery)
            return Intake(self.groups, retries, self._wakes)

        found: Intake = self._part("intake", make)
        return found

    @property
    def _consumers(self) -> "OpenConsumers":
        def make() -> "OpenConsumers":
            from penstock_messaging.consuming.open_consumers import OpenConsumers  # noqa: PLC0415 - see the module
            from penstock_messaging.delays.levels import delay_ms  # noqa: PLC0415 - see the module
            from penstock_messaging.groups.claims import Claims  # noqa: PLC0415 - see the module

            return OpenConsumers(
                self.context, self.store, partial(Claims, self.groups),
                lambda group: self.configuration.groups.ensure(group).retry_max, delay_ms,
            )  # fmt: skip

        found: OpenConsumers = self._part("consumers", make)
        return found

    @property
    def halves(self) -> "OpenHalves":
        """The prepared messages that are not finished; only where the store is open for writing."""

        def make() -> "OpenHalves":
            from penstock_messaging.prepared.open_halves import OpenHalves  # noqa: PLC0415 - see the module

            made = OpenHalves(
                self.context, self.store, check=self._check_delivery,
                ensure=self.configuration.topics.ensure,
            )  # fmt: skip
            made.load()
            return made

        found: OpenHalves = self._part("halves", make)
        return found

    @property
    def checking(self) -> "Checking":
        """The service that asks the program about prepared messages; only where the store is open for writing."""

        def make() -> "Checking":
            from penstock_messaging.prepared.check_back import Checking  # noqa: PLC0415 - see the module

            options = self.options
            return Checking(
                self.context, self.functions.get("check_back"), self.halves, self._handle,
                interval_ms=options.check_interval_ms,
                immunity_ms=options.check_immunity_ms, checks_max=options.checks_max,
            )  # fmt: skip

        found: Checking = self._part("checking", make)
        return found

    # --- begin and end

    def attach(self, store: OpenStore) -> None:
        """See `Extension`. Takes up the work that an earlier process left open, before the first put."""
        self._store = store
        if self.context.read_only:
            return
        files, root = self.context.files, self.context.root
        if files.exists(root / LOST_END):
            self._forget_deliveries(store)
        is_clean = store.recovery is not None and store.recovery.state == "clean"
        if not (is_clean and files.exists(root / "config" / "topics.json")) and store.topics(
            system=True
        ):
            _ = self.configuration

        def has_queue(topic: str) -> bool:
            # After a crash, the queue may not have its folder yet.
            has_folder = files.exists(root / "consumequeue" / topic)
            return has_folder or (not is_clean and topic in store.topics(system=True))

        if has_queue(_SCHEDULE_TOPIC):
            _ = self.delivery
        if has_queue(_TIMER_TOPIC):
            _ = self.timers
        if has_queue(_HALF_TOPIC):
            for half in self.halves.all():
                self.checking.expect(half)
        try:
            ensure_store_id(files, root)
        except (PenstockError, OSError) as error:
            # Puts and reads need nothing of groups.
            logger.warning("this store can have no consumers, and all else works: %s", error)
        self._wakes = store.work_wakes()
        self._recover_decisions()
        self._take_in()
        # Members in other processes may form the first group later.
        self._watcher = self.context.spawn("penstock-intake", self._take_in, self._wakes)

    def _forget_deliveries(self, store: OpenStore) -> None:
        """Forget which messages count as delivered or finished: the log may lack their copies, and has the others."""
        files, root = self.context.files, self.context.root
        if self._has_groups():
            logger.warning(
                "the log of %s has lost its end, and with it retries and results of messages that groups have answered "
                "then; set a group back with penstock groups reset where that matters", root,
            )  # fmt: skip

        def forget(name: str) -> None:
            if files.exists(root / name):
                files.remove(root / name)
                files.sync_folder((root / name).parent)

        try:
            for name in _DELIVERIES:
                forget(name)
            # Offsets that cannot be read do not count either.
            with suppress(CorruptionError):
                store.remove_offsets(_HALF_GROUP)
            forget(LOST_END)
        except (PenstockError, OSError) as error:
            logger.warning(
                "the log of %s has lost its end, and files that count what was delivered are still there (%s): delayed "
                "and prepared messages may be missing until the store is opened again", root, error,
            )  # fmt: skip

    def _recover_decisions(self) -> None:
        """Take up what transactions of an earlier process have acknowledged, before any consumer gets a message."""
        try:
            if self._has_decisions():
                self.deciding.recover()
        except (PenstockError, OSError) as error:
            logger.warning(
                "what transactions have acknowledged is not taken up, and all but consumers works: %s", error
            )  # fmt: skip

    def _has_decisions(self) -> bool:
        return self.context.files.exists(self.context.root / SIDE_FOLDER / "decisions")

    def _has_groups(self) -> bool:
        return self.context.files.exists(self.context.root / SIDE_FOLDER / "groups")

    def _wake_intake(self) -> None:
        """Take in at once what a consumer of this process has refused."""
        watcher = self._watcher
        if watcher is not None:
            watcher.wake()

    def _take_in(self) -> float | None:
        """Do what is left of transactions, and take in what consumers have answered; see `_take_in_answers`."""
        deciding: Deciding | None = self._parts.get("deciding")
        has_left = deciding is not None and deciding.step()
        pause_s = self._take_in_answers()
        return INTERVAL_S if pause_s is None and has_left else pause_s

    def _take_in_answers(self) -> float | None:
        """Take in what consumers have answered; return the seconds until the next call, None if it must be woken.

        A failure is logged once, and tried again: broken files of groups do not keep a store from opening.
        """
        arrive = self._wakes.ask()
        if not self._has_groups():
            return None if arrive else INTERVAL_S
        try:
            intake = self._intake
        except (PenstockError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning("what consumers have answered is not taken in: %s", error)
            self._wakes.go_on()
            return INTERVAL_S
        with self._taking:
            return intake.step()

    def detach(self) -> None:
        """See `Extension`."""
        parts, watcher = self._parts, self._watcher
        self._watcher = None
        if "consumers" in parts:
            parts["consumers"].close()
        if watcher is not None:
            watcher.stop()
            self._take_in()
            # Confirms the committed offsets that the first call moved: any other one is then another program's.
            self._take_in()
        if "deciding" in parts:
            parts["deciding"].end()
        if "checking" in parts:
            parts["checking"].end()
        if "halves" in parts:
            parts["halves"].end()
        if "delivery" in parts:
            parts["delivery"].detach()
        if "timers" in parts:
            parts["timers"].detach()
        if "configuration" in parts:
            parts["configuration"].end()

    # --- what the store asks

    @property
    def is_behind(self) -> bool:
        """See `Extension`: delayed messages that are due are not all delivered."""
        services = [self._parts[name] for name in ("delivery", "timers") if name in self._parts]
        return any(each.is_behind for each in services)

    def check_put(self, topic: str, queue: int) -> None:
        """Refuse puts that the topic's configuration, or RocketMQ, does not allow."""
        self.configuration.check_put(topic, queue)

    def _check_delivery(self, topic: str, queue: int) -> None:
        """Refuse to deliver to a topic that was deleted, or takes no messages any more; list the topics of retries."""
        if topic.startswith("%"):
            self.configuration.topics.ensure(topic, queue)
        else:
            self.configuration.check_put(topic, queue, grows=True)

    def _keep_undelivered(self, message: StoredMessage, why: str) -> None:
        """Store a delayed message that cannot be delivered as a dead letter that says why; once for each."""
        from penstock_messaging.retries.copies import undelivered  # noqa: PLC0415 - see the module

        if message.log_offset in self._kept:
            return
        for copy, text in undelivered(message, why):
            with suppress(MessageError):
                self.configuration.topics.ensure(copy.topic, 0)
                self.store.put_copies([(copy, text)])
                self._kept.add(message.log_offset)
                return

    def add_queue(self, topic: str, queue: int) -> None:
        """Give a topic that messages have created a queue."""
        topics = self.configuration.topics
        if topics.get(topic) is not None and not topics.is_being_deleted(topic):
            topics.ensure(topic, queue)

    def queues_of(self, topic: str) -> int:
        """Return how many queues new messages of a topic are distributed to."""
        return self.configuration.queues_of(topic)

    def rewrite(self, message: Message) -> Message | tuple[Message, bytes] | None:
        """Pick the queue of a message, and delay it if it requests that."""
        routed = self.configuration.routed(message)
        if routed.delay != 0 or routed.deliver_at is not None:
            return self._timed(routed)
        if routed.delay_level == 0:
            return routed
        from penstock_messaging.delays.schedule import scheduled  # noqa: PLC0415 - see the module

        made = scheduled(routed, self.store.check)
        self.configuration.topics.ensure(made[0].topic, made[0].queue)
        self.delivery.expect(routed.delay_level)
        return made

    def _timed(self, message: Message) -> Message | tuple[Message, bytes]:
        """Return what is stored in place of a message that is to be delivered at a time."""
        from penstock_messaging.timers.requests import due_ms_of  # noqa: PLC0415 - see the module
        from penstock_messaging.timers.timer_message import timed  # noqa: PLC0415 - see the module

        now_ms = self.context.clock.time_ms()
        due_ms = due_ms_of(
            message, now_ms, delay_max_ms=self.options.delay_max_ms,
            is_refused=self.options.timers == "refuse",
        )  # fmt: skip
        plain = message.__replace__(delay=0, deliver_at=None)
        if due_ms <= now_ms:
            return plain
        made = timed(plain, due_ms, self.store.check)
        self.configuration.topics.ensure(made[0].topic, made[0].queue)
        self.timers.expect(due_ms)
        return made

    # --- methods of the store

    def cancel_delayed(self, message: StoredMessage) -> bool:
        """Implement `Store.cancel_delayed`, of the message that the caller named."""
        return message.topic == _TIMER_TOPIC and self.timers.cancel(message)

    def delayed(self) -> list[DelayedMessage]:
        """Implement `Store.delayed`."""
        from penstock_messaging.timers.timer_listing import listed  # noqa: PLC0415 - see the module

        return listed(self.store, self.timers.entries()) if self._has_timers() else []

    def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """Implement `Store.consumer`."""
        from penstock_messaging.consuming.consumer_options import checked_options  # noqa: PLC0415 - see the module
        from penstock_messaging.consuming.selection import checked_topics  # noqa: PLC0415 - see the module

        self._declare(group, is_broadcast=checked_options(options).broadcast)
        consumer = self._consumers.make(group, topics, **options)
        known = {*self.store.topics(system=True), *self.configuration.topics.all()}
        for topic in checked_topics(topics):
            if "*" not in topic and topic not in known and (hint := near(topic, known)):
                logger.warning("consumer of group %s waits for topic %r, which does not exist%s", group, topic,
                    hint)  # fmt: skip
        return consumer

    def _declare(self, group: object, *, is_broadcast: bool) -> None:
        """List a group and the topic of its retries, as a broker does when the group's first consumer comes."""
        from penstock_messaging.consuming.selection import checked_group  # noqa: PLC0415 - see the module
        from penstock_messaging.retries.copies import retry_topic  # noqa: PLC0415 - see the module

        if not (self.context.read_only or is_broadcast):
            name = checked_group(group)
            self.configuration.groups.ensure(name)
            self.configuration.topics.ensure(retry_topic(name))

    def delete_group(self, group: str) -> None:
        """Implement `Store.delete_group`."""
        from penstock_messaging.consuming.selection import checked_group  # noqa: PLC0415 - see the module

        name = checked_group(group, "delete_group")
        self._intake.delete(name)
        self.configuration.groups.delete(name)

    def transaction(self) -> Transaction:
        """Implement `Store.transaction`."""

        def make() -> type["BatchTransaction"]:
            from penstock_messaging.transactions.batch import BatchTransaction  # noqa: PLC0415 - see the module

            return BatchTransaction

        kind: type[BatchTransaction] = self._part("transaction", make)
        return kind(self.store, lambda: self.deciding)

    def prepare(self, message: Message, group: str, *, wait: bool) -> Prepared:
        """Implement `Store.prepare`."""
        from penstock_messaging.prepared.half_message import refuse_delays  # noqa: PLC0415 - see the module

        plain = self.configuration.routed(message)
        self.store.check(plain)
        refuse_delays(plain)
        half = self.halves.prepare(plain, group, uuid.uuid4().hex.upper())
        try:
            if wait:
                self.store.flush()
        finally:
            # Also one whose caller gets an error: it may be on disk.
            self.checking.expect(half)
        return self._handle(half)

    def _handle(self, half: "OpenHalf") -> Prepared:
        """Return the object by which a program finishes a prepared message."""
        from penstock_messaging.prepared.handle import PreparedHandle  # noqa: PLC0415 - see the module

        is_asked = self.checking.callback_of(half.facts.group) is not None
        topics = self.configuration.topics
        return PreparedHandle(half, self.halves, topics, self.context, is_asked_about=is_asked)

    def prepared(self) -> list[Prepared]:
        """Implement `Store.prepared`."""
        if not self.context.read_only:
            return [self._handle(half) for half in _oldest_first(self.halves.all())]
        from penstock_messaging.prepared.half_queue import read_open  # noqa: PLC0415 - see the module
        from penstock_messaging.prepared.handle import ShownPrepared  # noqa: PLC0415 - see the module

        topics = self.configuration.topics
        return [
            ShownPrepared(half, self.store, topics, self.context)
            for half in _oldest_first(read_open(self.store))
        ]

    def create_topic(self, topic: str, **given: Any) -> TopicConfig:
        """Implement `Store.create_topic`."""
        return self.configuration.create_topic(topic, **given)

    def alter_topic(self, topic: str, **given: Any) -> TopicConfig:
        """Implement `Store.alter_topic`."""
        return self.configuration.alter_topic(topic, **given)

    def delete_topic(self, topic: str) -> None:
        """Implement `Store.delete_topic`."""
        with self._taking:
            self.configuration.delete_topic(topic)

    def topic_configs(self) -> dict[str, TopicConfig]:
        """Implement `Store.topic_configs`."""
        return dict(self.configuration.topic_configs())

    def findings(self) -> Iterable[Finding]:
        """Return what is wrong with the file of decisions."""
        if self._has_decisions():
            from penstock_messaging.transactions.decided_acks import decision_findings  # noqa: PLC0415 - see the module

            yield from decision_findings(self.context.files, self.context.root)

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`, of the parts in use: making one reads the store, which may fail."""
        deciding: Deciding | None = self._parts.get("deciding")
        figures: dict[str, Any] = {"undecided": 0 if deciding is None else deciding.undecided}
        for part, name in (("delivery", "delays"), ("timers", "timers")):
            if part in self._parts:
                figures[name] = self._parts[part].stats()
        if "configuration" in self._parts:
            figures.update(self.configuration.stats())
        if "halves" in self._parts:
            figures["prepared"] = {**self.halves.stats(), **self.checking.stats()}
        return figures

    def summary(self) -> Sequence[SummaryLine]:
        """See `Extension`: what waits for its time, is prepared and not committed, or is a transaction not decided."""
        lines: list[SummaryLine] = []
        if _SCHEDULE_TOPIC in self.store.topics(system=True):
            from penstock_messaging.delays.delivery import summary_line as delays_line  # noqa: PLC0415 - see the module

            lines.append(
                delays_line(
                    self.store, None if self.context.read_only else self.delivery, self.context
                )
            )
        if self._has_timers():
            from penstock_messaging.timers.timer_listing import summary_line  # noqa: PLC0415 - see the module

            lines.append(summary_line(self.store, self.timers))
        if self._has_prepared():
            from penstock_messaging.prepared.shown import summary_of  # noqa: PLC0415 - see the module

            lines += summary_of(self.prepared())
        if self._has_decisions():
            from penstock_messaging.transactions import decided_acks  # noqa: PLC0415 - see the module

            lines += decided_acks.summary_of(self._undecided)
        return lines

    def _undecided(self) -> int:
        if self.context.read_only:
            return self._decided_elsewhere.undecided(self.groups.resolved)
        return self.deciding.undecided

    def _has_prepared(self) -> bool:
        if not self.context.read_only:
            return "halves" in self._parts
        return self.context.files.exists(self.context.root / "consumequeue" / _HALF_TOPIC)
