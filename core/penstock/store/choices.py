"""What a configuration means for one store: its defaults, its file sizes, and the strategies picked."""

from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from penstock.config.model import Config
from penstock.config.profiles import Profile
from penstock.contracts import Context, Dispatcher, QueueIndex, RetentionPolicy
from penstock.contracts.geometry import Geometry
from penstock.errors import ConfigError, ConflictError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.plugins.registry import Registry
from penstock.recovery.store_layout import find_geometry, find_profile

logger = get_logger(__name__)


class Choices:
    """The configuration of one store, completed by what the store was made with. Changes nothing.

    Attributes:
        asked: the configuration as it was given, which may be used for other stores too.
    """

    def __init__(self, root: Path, asked: Config, registry: Registry, files: Files) -> None:
        self.root = root
        self.asked = asked
        self.registry = registry
        self.files = files

    @cached_property
    def profile(self) -> Profile:
        """Whose defaults hold for this store."""
        return find_profile(self.files, self.root, self.asked.profile)

    @cached_property
    def config(self) -> Config:
        """The configuration that holds for this store; looked up once, before the store is made."""
        return self.asked.for_store(self.profile)

    def geometry(self) -> Geometry:
        """Return the store's sizes, checked against those asked for."""
        asked = attrs.asdict(self.asked.geometry)
        return find_geometry(self.files, self.root, asked, self.profile.geometry)

    def check_strategies(self) -> None:
        """Raise for names that no plugin offers, and for picks that make no sense together."""
        config = self.config
        picks = config.picks()
        chosen = [
            (kind, self.registry.sets()[kind].get(name))
            for kind, names in picks.items()
            for name in names
        ]
        knowing = sum(issubclass(cls, QueueIndex) for _, cls in chosen)
        if knowing != 1:
            raise ConfigError(
                f"index.use is {config.index.use}; exactly one of it must know the queues, as "
                f"consume-queue does, and {knowing} do"
            )
        for kind, cls in chosen:
            reason = cls.conflict(picks)
            if reason is not None:
                raise ConflictError(kind, cls.name, reason)

    def warn_of_idle_policies(self) -> None:
        """Log options of retention policies that were given although the policy is not used."""
        names = self.config.picks()["retention"]
        for key in self.asked.origins:
            kind, *rest = key.split(".")
            if kind == "retention" and len(rest) > 1 and rest[0] not in names:
                logger.warning(
                    "%s is set, but retention.use is %s: that policy deletes nothing from %s",
                    key, names, self.root,
                )  # fmt: skip

    def dispatchers(self, context: Context) -> list[Dispatcher]:
        """Return the configured dispatchers, not loaded."""
        return [cls(options, context) for cls, options in self.dispatcher_kinds()]

    def dispatcher_kinds(self) -> tuple[tuple[type[Dispatcher], Any], ...]:
        """Return the classes of the configured dispatchers, each with its options."""
        classes = [self.registry.dispatchers.get(name) for name in self.config.index.use]
        return tuple((cls, self.config.options_for("index", cls)) for cls in classes)

    def policies(self, context: Context) -> list[RetentionPolicy]:
        """Return the configured retention policies, with no state yet."""
        names = self.config.picks()["retention"]
        classes = [self.registry.retention_policies.get(name) for name in names]
        return [cls(self.config.options_for("retention", cls), context) for cls in classes]
