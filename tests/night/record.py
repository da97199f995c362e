"""The nights so far: `night.jsonl`, a line for each part of each night, and the table of the track record, which is made from it."""

import json
from pathlib import Path
from typing import NamedTuple

HISTORY = Path(__file__).parents[1] / "night.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "track-record.md"
HEAD = "| part | nights | rounds | last | result of the last |\n|---|---|---|---|---|\n"


class Night(NamedTuple):
    """One part of one night."""

    date: str
    commit: str
    part: str
    rounds: int
    seeds: list[int]
    result: str


def add(path: Path, night: Night) -> None:
    """Add a line to the history."""
    with path.open("a") as file:
        file.write(json.dumps(night._asdict()) + "\n")


def read(path: Path) -> list[Night]:
    """Return the nights of a history, oldest first."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Night(**json.loads(line)) for line in lines]


def table(nights: list[Night]) -> str:
    """Return the table of the page: each part, how often it ran, and how it ended last."""
    parts: dict[str, list[Night]] = {}
    for night in nights:
        parts.setdefault(night.part, []).append(night)
    rows = ""
    for part, found in sorted(parts.items()):
        last = found[-1]
        rounds = sum(night.rounds for night in found)
        rows += (
            f"| {part} | {len(found)} | {rounds} | {last.date}, {last.commit} | {last.result} |\n"
        )
    return HEAD + rows


def page(text: str, nights: list[Night]) -> str:
    """Return the page with the table made anew."""
    begin = text.index(HEAD)
    end = text.find("\n\n", begin) + 1 or len(text)
    return text[:begin] + table(nights) + text[end:]


def write_page() -> None:
    """Make the table of the page anew."""
    PAGE.write_text(page(PAGE.read_text(), read(HISTORY)))
