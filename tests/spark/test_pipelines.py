"""The pipelines of `examples/`, run as a user runs them, print what the docs show."""

import base64
import collections
import gzip
import json
import re
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.interop.javastore import VERSIONS, JavaStore, build
from tests.interop.jvms import need_java

import penstock

ROOT = Path(__file__).parents[2]
PIPELINES = sorted((ROOT / "examples" / "pipelines").glob("*.py"))
CHANGES = ROOT / "examples" / "data" / "changes.ndjson.gz"
WEEK = 7 * 86400
DOCS = (ROOT / "docs" / "pipelines.md").read_text()


def shown(name: str) -> str:
    """Return what the docs show under a pipeline's command."""
    found = re.search(
        rf"```console\n\$ python examples/pipelines/{name} [^\n]*\n(.*?)```", DOCS, re.DOTALL
    )
    assert found, f"docs/pipelines.md does not show {name}"
    return found[1]


def run(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: object,
) -> None:
    script = ROOT / "examples" / "pipelines" / name
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    runpy.run_path(str(script), run_name="__main__")
    lines = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert "\n".join(lines) == shown(name).strip()


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_a_pipeline_is_short_and_in_the_docs(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60
    assert shown(path.name)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the real RocketMQ store wrote: the changes, by the kind of file."""
    need_java()
    root = tmp_path_factory.mktemp("broker") / "store"
    with JavaStore(build(VERSIONS[0])) as java, gzip.open(CHANGES, "rb") as lines:
        assert java.open(root)
        answers = java.put(*(as_message(line.strip()) for line in lines))
        assert {answer["status"] for answer in answers} == {"PUT_OK"}
        java.close()
    return root


def as_message(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    kind = Path(row["path"].strip('"')).suffix.lstrip(".")
    return {
        "topic": "code" if kind == "java" else "other", "queue": row["time"] % 4, "tag": row["module"].strip('"'),
        "keys": row["commit"], "body": base64.b64encode(line).decode(), "born_time_ms": row["time"] * 1000,
    }  # fmt: skip


@pytest.mark.night
def test_a_brokers_directory_by_day(
    spark: Any, broker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("broker_days.py", monkeypatch, capsys, broker)


def rows() -> list[dict[str, Any]]:
    with gzip.open(CHANGES, "rb") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.night
def test_lines_to_a_stream_to_weeks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("weekly_changes.py", monkeypatch, capsys, CHANGES, tmp_path)
    weeks = spark.read.parquet(str(tmp_path / "weeks")).collect()
    expected: collections.Counter[tuple[int, str]] = collections.Counter()
    for row in rows():
        # Spark's windows of seven days begin on Thursdays, as time did.
        expected[row["time"] // WEEK * WEEK, row["module"]] += 1
    late = max(row["time"] for row in rows()) - 2 * WEEK
    found = {
        (int(w.week.start.replace(tzinfo=UTC).timestamp()), w.module): w.changes for w in weeks
    }
    closed = {place: count for place, count in expected.items() if place[0] + WEEK <= late}
    assert found == closed
    assert len(weeks) == len(found), "a week is written once"
    assert sum(w.binary for w in weeks) == sum(row["added"] is None for row in rows())


@pytest.mark.night
def test_two_stores_to_one(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("returning_files.py", monkeypatch, capsys, CHANGES, tmp_path)
    years: dict[int, set[str]] = {2024: set(), 2025: set()}
    for row in rows():
        years.setdefault(datetime.fromtimestamp(row["time"], UTC).year, set()).add(row["path"])
    with penstock.open(tmp_path / "joined", read_only=True) as store:
        keys = [" ".join(message.keys) for message in store.scan("returning")]
    assert sorted(keys) == sorted(years[2024] & years[2025])
