"""One line about a store, for people and for programs."""

from typing import Any, NamedTuple


class SummaryLine(NamedTuple):
    """One line of what an extension or a replicator says about a store.

    Attributes:
        key: its name in JSON, unique within the store: lower-case words joined by `_`.
        what: what is shown, as the first column of `penstock stat`.
        text: the value as text, the second column.
        value: the value for programs; anything that JSON can hold.
    """

    key: str
    what: str
    text: str
    value: Any
