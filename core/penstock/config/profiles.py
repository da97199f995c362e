"""Profiles: what holds for a store where its configuration says nothing.

That depends on who made the store. Two profiles can be asked for by name; the others are those of stores that are
there already. A store that Penstock makes, or takes over, notes its profile in `penstock/geometry.json`, so
that it keeps these defaults for as long as it lives.
"""

import attrs

from penstock.contracts.geometry import ROCKETMQ, Geometry


@attrs.frozen(kw_only=True)
class Profile:
    """Defaults of one kind of store.

    Attributes:
        name: what is noted in the store.
        geometry: file sizes, where neither the configuration nor the store's files tell them.
        checksum: the default of `log.checksum`.
        retention: the default of `retention.use`.
    """

    name: str
    geometry: Geometry
    checksum: str
    retention: tuple[str, ...]


EMBEDDED = Profile(name="embedded", geometry=Geometry(), checksum="crc32+record", retention=())
JAVA = Profile(name="rocketmq", geometry=ROCKETMQ, checksum="crc32", retention=("age",))
# A directory that another program made. Nobody has asked us to delete anything from it.
BROKER = Profile(name="broker", geometry=ROCKETMQ, checksum="crc32", retention=())
# A store of version 0.1, which noted no profile: it goes on as it began.
FIRST = Profile(
    name="penstock-0.1",
    geometry=Geometry(queue_entries=300_000),
    checksum="crc32",
    retention=("age",),
)

# Those that may be asked for, and all that a store may have noted.
PROFILES = {profile.name: profile for profile in (EMBEDDED, JAVA)}
KNOWN = {profile.name: profile for profile in (EMBEDDED, JAVA, BROKER, FIRST)}
