"""Kills, stops and forks of everything that works on one store: consumers in many processes, and the writer.

`consumer_kills` runs the processes, which trace what they do; `consumer_checks` judges the traces. What a failed run leaves, traces and
store, is in the test's folder.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.children import environment
from tests.lanes import SEED, rounds
from tests.night.kills.consumer_checks import Stored, Story, figures, problems, stored_twice
from tests.night.kills.consumer_processes import (
    FLEETING,
    GROUPS,
    MOVED,
    TOPIC,
    number_of,
    topics_of,
)
from tests.night.kills.consumer_trace import TraceReader

import penstock
from penstock import Store

ROOT = Path(__file__).parents[3]
# Kills, stops and forks of a run.
KILLS = rounds(gate=6, night=100)
_SHOWN_MAX = 20


def run(folder: Path, seed: int) -> str:
    """Run the processes; returns what went wrong, or ""."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.night.kills.consumer_kills", str(folder), str(KILLS), str(seed)],
        cwd=ROOT, env={**environment(), "OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said = process.communicate(timeout=300 + 10 * KILLS)[1]
    finally:
        # It ends all that it has started, unless it was interrupted itself.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return said if process.returncode else ""


@pytest.mark.slow
def test_killed_stopped_and_forked_members_break_no_guarantee(tmp_path: Path) -> None:
    seed = SEED
    failed = run(tmp_path, seed)
    story = Story(TraceReader(tmp_path / "traces").new(), GROUPS, deleted=(FLEETING,))
    counts = figures(story)
    print(counts)
    found = problems(story)
    assert not found, "\n".join([f"seed {seed}", failed[-4000:], *found[:_SHOWN_MAX]])
    assert not failed, f"seed {seed}\n{failed}"
    # What was to be tried was tried.
    assert sum(counts.get(kind, 0) for kind in ("killed", "stopped", "forked")) >= KILLS
    seldom = (
        ("again after a kill", "again in an epoch", "sought", "committed", "deleted", "cancelled")
        if KILLS >= 100
        else ()
    )
    for kind in ("killed", "stopped", "forked", "refused", "acked", "nacked", "dead", *seldom):
        assert counts.get(kind), f"{kind} never happened: {counts}"
    check_closed(tmp_path / "store", story)


def check_closed(path: Path, story: Story) -> None:
    """After the clean close of the writer a broker sees that everything is consumed, and nothing is stored twice."""
    with penstock.open(path, read_only=True) as store:
        for group in GROUPS:
            for topic in (*topics_of(group), f"%RETRY%{group}"):
                for queue in store.topics(system=True).get(topic, ()):
                    end = store.max_offset(topic, queue)
                    committed = store.committed_offset(group, topic, queue) or 0
                    assert committed == end, f"{group} {topic}/{queue}: {committed} of {end}"
        kills_ms = [
            int(event.note)
            for event in story.events
            if event.kind == "killed" and event.process.startswith("writer")
        ]
        found = list(stored_twice(everything(store), TOPIC, kills_ms, (MOVED,)))
        assert not found, "\n".join(found[:_SHOWN_MAX])
        assert not list(store.verify())


def everything(store: Store) -> Iterator[Stored]:
    """Return all messages of a store."""
    for topic in store.topics(system=True):
        for message in store.scan(topic):
            target = message.all_properties["REAL_TOPIC"] if topic == "SCHEDULE_TOPIC_XXXX" else ""
            yield Stored(
                topic, target, number_of(message.body), message.reconsume_times, message.store_time_ms
            )  # fmt: skip
