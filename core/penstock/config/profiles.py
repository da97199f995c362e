"""Profiles: the defaults of settings that the configuration of a store leaves out.

They depend on who created the store. Two profiles can be requested by name; the others apply to existing stores.
When Penstock creates a store, or opens another program's store for writing, it records the profile in
`penstock/geometry.json`, so that the store keeps these defaults permanently.
"""

from collections.abc import Mapping

import attrs

from penstock.contracts.base import ROCKETMQ, Geometry


@attrs.frozen(kw_only=True)
class Profile:
    """Defaults of one kind of store.

    Attributes:
        name: the name that is recorded in the store.
        geometry: file sizes, used if neither the configuration nor the store's files determine them.
        checksum: the default of `log.checksum`.
        retention: the default of `retention.use`.
        options: defaults of strategies' options, by dotted key, where they are not the strategies' own.
    """

    name: str
    geometry: Geometry
    checksum: str
    retention: tuple[str, ...]
    options: Mapping[str, object] = {}


EMBEDDED = Profile(name="embedded", geometry=Geometry(), checksum="crc32+record", retention=())
JAVA = Profile(
    name="rocketmq",
    geometry=ROCKETMQ,
    checksum="crc32",
    retention=("age",),
    options={"flush.async.least_pages": 4, "flush.async.thorough_interval_ms": 10_000},
)
# A directory that another program created. Nobody has told Penstock to delete anything from it.
BROKER = Profile(name="broker", geometry=ROCKETMQ, checksum="crc32", retention=())

# The profiles that may be requested, and all that a store may have recorded.
PROFILES = {profile.name: profile for profile in (EMBEDDED, JAVA)}
KNOWN = {profile.name: profile for profile in (EMBEDDED, JAVA, BROKER)}
