"""The configuration completed for one store: its defaults, its file sizes, and the strategies picked."""

from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from penstock.config.model import Config
from penstock.config.profiles import Profile
from penstock.contracts import Context, Dispatcher, Extension, QueueIndex, RetentionPolicy
from penstock.contracts.geometry import Geometry
from penstock.errors import ConfigError, ConflictError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.plugins.registry import Registry
from penstock.recovery.store_layout import find_geometry, find_profile

logger = get_logger(__name__)


class Choices:
    """The configuration of one store, completed with the values the store was created with. Changes nothing.

    Attributes:
        asked: the configuration as given, which may be used for other stores too.
    """

    def __init__(self, root: Path, asked: Config, registry: Registry, files: Files) -> None:
        # The user may have put the store on another disk. Links within a store are refused.
        self.root = files.followed(root)
        self.asked = asked
        self.registry = registry
        self.files = files

    @cached_property
    def profile(self) -> Profile:
        """The profile whose defaults apply to this store."""
        return find_profile(self.files, self.root, self.asked.profile)

    @cached_property
    def config(self) -> Config:
        """The configuration that applies to this store; determined once, before the store is created."""
        return self.asked.for_store(self.profile)

    def geometry(self) -> Geometry:
        """Return the store's sizes; raises `GeometryError` if the configuration requests other ones."""
        asked = attrs.asdict(self.asked.geometry)
        return find_geometry(self.files, self.root, asked, self.profile.geometry)

    def check_strategies(self) -> None:
        """Raise if no plugin offers a configured strategy, or if the configured strategies conflict."""
        config = self.config
        picks = config.picks()
        chosen = [
            (kind, self.registry.sets()[kind].get(name))
            for kind, names in picks.items()
            for name in names
        ]
        queue_indexes = sum(issubclass(cls, QueueIndex) for _, cls in chosen)
        if queue_indexes != 1:
            raise ConfigError(
                f"index.use is {config.index.use}: exactly one of its dispatchers must be a queue index, for "
                f"example consume-queue, but {queue_indexes} are. Nothing was opened; correct index.use"
            )
        for kind, cls in chosen:
            reason = cls.conflict(picks)
            if reason is not None:
                raise ConflictError(kind, cls.name, reason)

    def warn_of_idle_policies(self) -> None:
        """Log a warning for each option of a retention policy that is set although the policy is not used."""
        names = self.config.picks()["retention"]
        for key in self.asked.origins:
            kind, *rest = key.split(".")
            if kind == "retention" and len(rest) > 1 and rest[0] not in names:
                logger.warning(
                    "%s is set, but retention.use is %s: that policy deletes nothing from %s; add %r to retention.use",
                    key, names, self.root, rest[0],
                )  # fmt: skip

    def dispatchers(self, context: Context) -> list[Dispatcher]:
        """Return the configured dispatchers, not yet loaded."""
        return [cls(options, context) for cls, options in self.dispatcher_kinds()]

    def dispatcher_kinds(self) -> tuple[tuple[type[Dispatcher], Any], ...]:
        """Return the classes of the configured dispatchers, each with its options."""
        classes = [self.registry.dispatchers.get(name) for name in self.config.index.use]
        return tuple((cls, self.config.options_for("index", cls)) for cls in classes)

    def policies(self, context: Context) -> list[RetentionPolicy]:
        """Return new instances of the configured retention policies."""
        names = self.config.picks()["retention"]
        classes = [self.registry.retention_policies.get(name) for name in names]
        return [cls(self.config.options_for("retention", cls), context) for cls in classes]

    def extensions(self, context: Context) -> list[Extension]:
        """Return the configured extensions, not yet attached."""
        classes = [self.registry.extensions.get(name) for name in self.config.extensions.use]
        return [cls(self.config.options_for("extensions", cls), context) for cls in classes]
