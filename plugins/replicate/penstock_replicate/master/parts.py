"""What all connections of a master share."""

from collections.abc import Callable

import attrs

from penstock.contracts import Context, ReplicatedLog
from penstock_replicate.master.bandwidth import Bandwidth
from penstock_replicate.master.copies import CopyTable
from penstock_replicate.master.ha_options import HaOptions
from penstock_replicate.master.side_feed import SideFeed
from penstock_replicate.wire.frames import EpochPair


@attrs.frozen(kw_only=True)
class MasterParts:
    """What all connections of a master share. Used in the loop's thread only.

    Attributes:
        history: of the log.
        epochs: of the log.
        secret: what followers must prove; None if nothing.

        time_s: the loop's clock.
    """

    log: ReplicatedLog
    context: Context
    options: HaOptions
    copies: CopyTable
    bandwidth: Bandwidth
    sides: SideFeed
    history: str
    epochs: tuple[EpochPair, ...]
    secret: bytes | None
    time_s: Callable[[], float]
