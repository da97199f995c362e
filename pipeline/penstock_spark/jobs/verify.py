"""The job `verify`: the segments of many stores checked in parallel; finds what `Store.verify` finds.

One piece of work checks a segment, or the derived files of a store on their own; a task runs several pieces.
Checks that need the whole store (entries without a record, digests, progress files) run on the driver at the end.
The job changes nothing. The driver keeps the findings. A store that cannot be checked is a finding; the others are
checked nevertheless.
"""

import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from penstock.errors import PenstockError
from penstock_spark.arrow import pa
from penstock_spark.jobs.tasks import (
    OnProgress,
    Report,
    ignore,
    kept,
    over,
    stores_of,
    tasks_for,
    watched,
)
from penstock_tools.segmentwise import Checked, CheckTask, Checkup, Finding, Tally

_FINDING = [
    ("part", pa.string()), ("path", pa.string()), ("position", pa.int64()),
    ("log_offset", pa.int64()), ("text", pa.string()), ("what_now", pa.string()),
    ("is_note", pa.bool_()),
]  # fmt: skip
# Of a piece that could not be checked.
_FAILED = ""
_TALLY = ("bytes_total", "bytes_seen", "records", "last_time_ms", "log_end")
# What the state of one store can raise.
_ERRORS = (PenstockError, OSError)
# One row for each finding, and after them one row for the piece itself, which has `seen`.
_ROW = pa.schema(
    [("id", pa.int64()), *_FINDING, *((name, pa.int64()) for name in _TALLY), ("seen", pa.string())]
)


@attrs.frozen(kw_only=True)
class VerifyReport(Report):
    """The result of a verification.

    Attributes:
        stores: number of stores.
        segments: number of their segments.
        bytes: bytes of log.
        records: valid records.
        findings: (store, finding) pairs, by store and in log order, including notes.
    """

    stores: int
    segments: int
    bytes: int
    records: int
    findings: list[tuple[str, Finding]]

    def rows(self) -> list[dict[str, Any]]:
        """Return the findings as plain rows."""
        return [
            {"store": store, **finding._asdict(), "path": str(finding.path)}
            for store, finding in self.findings
        ]

    @property
    def wrong(self) -> int:
        """The number of findings that are not notes."""
        return sum(not finding.is_note for _, finding in self.findings)

    def facts(self) -> dict[str, Any]:
        return {**self.summary(), "findings": self.rows()}

    def summary(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("stores", "segments", "bytes", "records")}
        notes = len(self.findings) - self.wrong
        return {
            **numbers, "findings": self.wrong, "notes": notes, "seconds": round(self.seconds, 3)
        }  # fmt: skip

    def frame(self, spark: Any) -> Any:
        """Return the findings as a data frame."""
        schema = pa.schema([("store", pa.string()), *_FINDING])
        return spark.createDataFrame(pa.Table.from_pylist(self.rows(), schema))


def run(
    spark: Any,
    paths: Sequence[str] | str,
    *,
    deep: bool = False,
    config: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: OnProgress = ignore,
) -> VerifyReport:
    """Check log, queues and index of stores.

    Args:
        spark: a session, classic or over Spark Connect.
        paths: stores, globs of them, datasets.
        deep: also compare sealed segments with their digests, and check checkpoint and progress files.
        config: a TOML file of settings, as for `penstock.open`; the same for all stores.
        settings: as for `penstock.open`.
        on_progress: called with the numbers of tasks done and of all tasks.
    """
    began = time.monotonic()
    planned = {root: _planned(root, config, settings, deep=deep) for root in stores_of(paths)}
    checkups = [each for each in planned.values() if isinstance(each, Checkup)]
    for each in planned.values() if not checkups else ():
        # Of the only store, or of arguments for all of them.
        assert isinstance(each, Exception)
        raise each
    pieces = [(at, piece) for at, each in enumerate(checkups) for piece in each.pieces]
    total = sum(each.bytes_total for each in checkups)
    with watched(spark, "verify", on_progress):
        checked = iter(_check_all(spark, checkups, pieces, total))
    findings: list[tuple[str, Finding]] = []
    records = 0
    for root, each in planned.items():
        if isinstance(each, Checkup):
            its, count = _gathered(each, next(checked))
        else:
            its, count = [_failed(root, each)], 0
        findings += [(str(root), finding) for finding in its]
        records += count
    return VerifyReport(
        stores=len(planned), segments=sum(piece >= 0 for _, piece in pieces), bytes=total,
        records=records, findings=findings, seconds=time.monotonic() - began,
    )  # fmt: skip


def _planned(
    root: Path, config: str | None, settings: Mapping[str, Any] | None, *, deep: bool
) -> Checkup | Exception:
    try:
        return Checkup(root, config, deep=deep, settings=settings)
    except _ERRORS as error:
        return error


def _failed(root: Path, error: Exception) -> Finding:
    """Return the finding for a store that cannot be checked."""
    return Finding(
        "store", root, -1, -1, f"the store cannot be checked: {error}",
        "do what the error says, and run verify again",
    )  # fmt: skip


def _gathered(checkup: Checkup, found: dict[int, Checked]) -> tuple[list[Finding], int]:
    """Return the findings of a store and the number of its valid records, given the results of its pieces."""
    findings: list[Finding] = []
    tally = Tally()

    def count(now: Tally) -> None:
        nonlocal tally
        tally = now

    if any(one.seen == _FAILED for one in found.values()):
        # Many pieces may fail for one reason.
        its = dict.fromkeys(finding for one in found.values() for finding in one.findings)
        return list(its), sum(one.tally.records for one in found.values())
    try:
        findings.extend(checkup.gather(found, count))
    except _ERRORS as error:
        findings.append(_failed(checkup.path, error))
    return findings, tally.records


def _check_all(
    spark: Any, checkups: list[Checkup], pieces: list[tuple[int, int]], total: int
) -> list[dict[int, Checked]]:
    """Return the results of the pieces of each store."""
    check = checker([each.task for each in checkups], pieces)
    frame = over(spark, len(pieces), tasks_for(spark, len(pieces), total), _ROW, check)
    checked: list[dict[int, Checked]] = [{} for _ in checkups]
    waiting: dict[int, list[Finding]] = {}
    for row in frame.toArrow().to_pylist():
        if row["seen"] is None:
            waiting.setdefault(row["id"], []).append(_finding(row))
        else:
            at, piece = pieces[row["id"]]
            tally = Tally(**{name: row[name] for name in _TALLY})
            found = waiting.pop(row["id"], [])
            checked[at][piece] = Checked(piece, found, tally, row["seen"])
    return checked


def _finding(row: dict[str, Any]) -> Finding:
    values = {name: row[name] for name, _ in _FINDING}
    return Finding(**{**values, "path": Path(values["path"])})


def checker(
    tasks: list[CheckTask], pieces: list[tuple[int, int]]
) -> Callable[[int], list[pa.RecordBatch]]:
    """Return a function that checks the piece with a number, in any process."""
    run_id = str(uuid.uuid4())

    def check(number: int) -> list[pa.RecordBatch]:
        at, piece = pieces[number]
        try:
            # Its index is read once for many pieces.
            worker = kept((run_id, at), tasks[at].worker)
            return [rows_of(number, worker.check(piece))]
        except _ERRORS as error:
            failed = [_failed(tasks[at].recipe.root, error)]
            return [rows_of(number, Checked(piece, failed, Tally(), _FAILED))]

    return check


def rows_of(number: int, checked: Checked) -> pa.RecordBatch:
    """Return the result of one piece as rows."""
    rows: list[dict[str, Any]] = [
        {"id": number, **finding._asdict(), "path": str(finding.path)}
        for finding in checked.findings
    ]
    tally = {name: getattr(checked.tally, name) for name in _TALLY}
    rows.append({"id": number, **tally, "seen": checked.seen})
    return pa.RecordBatch.from_pylist(rows, _ROW)


if __name__ == "__main__":
    from penstock_spark.cli import main

    sys.exit(main("verify"))
