"""The base of every job's report, with its tables as rows. This module does not import pyspark."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Report:
    """The result of a job.

    Attributes:
        seconds: how long it took, planning included.
    """

    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """Return everything as plain values."""
        found = attrs.asdict(self, value_serializer=_plain)
        return {**found, "seconds": round(self.seconds, 3)}

    def summary(self) -> dict[str, Any]:
        """Return the facts that fit into one line, without the tables."""
        return {
            name: value
            for name, value in self.facts().items()
            if not isinstance(value, list | dict) or name in self.listed
        }

    @property
    def listed(self) -> Sequence[str]:
        """Lists and mappings that are short enough for one line."""
        return ()

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        return json.dumps(self.facts(), ensure_ascii=False)


def _plain(_instance: object, _field: object, value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def rate(count: float, seconds: float) -> float:
    """Return the rate per second; 0 if no time has passed."""
    return count / seconds if seconds > 0 else 0.0
