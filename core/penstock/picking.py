"""Whether the strategies that a configuration picks are there, and make sense together."""

from penstock.config import Config
from penstock.contracts import QueueIndex
from penstock.errors import ConfigError, ConflictError
from penstock.registry import Registry


def check_picks(config: Config, registry: Registry) -> None:
    """Raise for names that no plugin offers, and for picks that make no sense together."""
    picks = config.picks()
    chosen = [
        (kind, registry.sets()[kind].get(name)) for kind, names in picks.items() for name in names
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
