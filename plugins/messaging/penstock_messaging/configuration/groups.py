"""The consumer groups of a store, in `config/subscriptionGroup.json` as brokers keep them.

A group is created at its first use (`ensure`), with a broker's defaults; that is saved a second later. An entry that
cannot be understood is set aside: it stays in the file as it is, and its group has the defaults.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.contracts import Context
from penstock.errors import MessageError, ReadOnlyError
from penstock.escape import get_logger, shown
from penstock_messaging.configuration.broker_files import BrokerFile
from penstock_messaging.configuration.broker_json import in_bean_order
from penstock_messaging.configuration.config_table import ConfigTable

logger = get_logger(__name__)

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
_DEFAULTS: dict[str, Any] = {
    "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
    "consumeFromMinEnable": True, "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16,
    "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip
# Fields that an entry also has since 5.x.
_SINCE_5: dict[str, Any] = {
    "attributes": {}, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0,
}  # fmt: skip


class GroupConfig(NamedTuple):
    """The configuration of a consumer group.

    Attributes:
        group: its name.
        retry_max: how often a message is retried before it becomes a dead letter.
        retry_queues: how many queues the topic `%RETRY%<group>` has; with 0, refused messages are not retried.
        is_enabled: the group may consume.
    """

    group: str
    retry_max: int = 16
    retry_queues: int = 1
    is_enabled: bool = True


class GroupConfigs:
    """The configurations of a store's consumer groups. Safe from any thread; one process writes.

    In a store that is opened read-only, the file is read again whenever it has changed. Names are not checked here.
    """

    def __init__(self, context: Context, on_change: Callable[[], None] = lambda: None) -> None:
        """Nothing is read until `load`; `on_change` is called after a change that `save` has to write."""
        self._read_only = context.read_only
        self._on_change = on_change
        self._table = ConfigTable(BrokerFile(context, "subscriptionGroup.json", "subscriptionGroupTable"))  # fmt: skip
        self._configs: dict[str, GroupConfig] = {}
        self._aside: dict[str, str] = {}
        self._mark: tuple[int, int] | None = None
        self._guard = threading.RLock()

    def load(self) -> None:
        """Read the file, and log what is not understood."""
        mark = self._table.file.mark()
        self._table.load()
        configs: dict[str, GroupConfig] = {}
        aside: dict[str, str] = {}
        for name, entry in self._table.entries.items():
            try:
                configs[name] = config_of(name, entry)
            except ValueError as error:
                aside[name] = str(error)
        self._configs, self._aside, self._mark = configs, aside, mark
        for remark in self.remarks():
            logger.warning("%s", remark)

    def remarks(self) -> list[str]:
        """Return one sentence for each problem with the file."""
        path, problem = self._table.file.path, self._table.file.problem
        found = [] if problem is None else [f"{problem}. Until then, groups are not saved"]
        return found + [
            f"{path}: the entry of group {shown(name)} is not used, since {why}; it stays in the file"
            for name, why in self._aside.items()
        ]

    def save(self) -> None:
        """Write what `ensure` has changed; raises `OSError` or `StorageError`."""
        self._table.save()

    def _refresh(self) -> None:
        """Read the file if it has not been read, or if another process may have changed it."""
        if self._mark is None or (self._read_only and self._table.file.mark() != self._mark):
            self.load()

    def get(self, group: str) -> GroupConfig | None:
        """Return the configuration of a group; None if it has none."""
        self._refresh()
        return self._configs.get(group)

    def all(self) -> dict[str, GroupConfig]:
        """Return the configurations of all groups that have one, sorted by name."""
        self._refresh()
        return dict(sorted(self._configs.items()))

    def ensure(self, group: str) -> GroupConfig:
        """Return the configuration of a group; one without gets the defaults, which are saved later.

        In a reader nothing is added: the process that writes does that.
        """
        found = self.get(group)
        if found is not None:
            return found
        made = GroupConfig(group)
        if self._read_only or group in self._aside:
            return made
        with self._guard:
            if group not in self._configs:
                self._configs[group] = made
                self._table.set_later(group, self._entry(made))
        self._on_change()
        return made

    def alter(
        self,
        group: str,
        *,
        retry_max: int | None = None,
        retry_queues: int | None = None,
        is_enabled: bool | None = None,
    ) -> GroupConfig:
        """Change the configuration of a group, durably; one without gets one. Arguments that are None change nothing.

        Raises `CorruptionError` if the file cannot be parsed, and `MessageError` if the group's entry was set aside.
        """
        self._check_writable(group)
        found = self.get(group) or GroupConfig(group)
        made = GroupConfig(
            group,
            found.retry_max if retry_max is None else retry_max,
            found.retry_queues if retry_queues is None else retry_queues,
            found.is_enabled if is_enabled is None else is_enabled,
        )
        with self._guard:
            entry = self._entry(made)
        self._table.set_now(group, entry)
        with self._guard:
            self._configs[group] = made
        return made

    def delete(self, group: str) -> bool:
        """Remove the configuration of a group, durably; returns whether there was one. Its offsets and topics stay."""
        if self._read_only:
            raise ReadOnlyError
        self._refresh()
        if group not in self._table.entries:
            return False
        self._table.set_now(group, None)
        with self._guard:
            self._configs.pop(group, None)
            self._aside.pop(group, None)
        return True

    def _check_writable(self, group: str) -> None:
        if self._read_only:
            raise ReadOnlyError
        self._refresh()
        if group in self._aside:
            raise MessageError(
                f"group {shown(group)} cannot be changed: its entry in {self._table.file.path} cannot be understood "
                f"({self._aside[group]}); correct it there while the store is closed. Nothing was changed"
            )

    def _entry(self, config: GroupConfig) -> dict[str, object]:
        """Return the entry of a configuration; fields that this version does not know are kept."""
        known = self._table.entries.get(config.group)
        newer = _SINCE_5 if self._table.file.has_attributes else {}
        before = known if isinstance(known, dict) else {**_DEFAULTS, **newer}
        return in_bean_order({
            **before, "groupName": config.group, "retryMaxTimes": config.retry_max,
            "retryQueueNums": config.retry_queues, "consumeEnable": config.is_enabled,
        })  # fmt: skip


def config_of(group: str, entry: object) -> GroupConfig:
    """Return the configuration in an entry of the file; missing fields have a broker's defaults.

    Raises `ValueError`, with the reason, if it cannot be understood.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{shown(entry)} is not a JSON object")  # noqa: TRY004 - callers handle both alike
    fields = {**_DEFAULTS, **{name: value for name, value in entry.items() if value is not None}}
    for name in ("retryMaxTimes", "retryQueueNums"):
        if type(fields[name]) is not int or not INT32_MIN <= fields[name] <= INT32_MAX:
            raise ValueError(f"{name} is {shown(fields[name])}")
    if not isinstance(fields["consumeEnable"], bool):
        raise ValueError(f"consumeEnable is {shown(fields['consumeEnable'])}")  # noqa: TRY004 - as above
    return GroupConfig(
        group, fields["retryMaxTimes"], fields["retryQueueNums"], fields["consumeEnable"]
    )
