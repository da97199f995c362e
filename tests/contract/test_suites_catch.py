"""The suites can fail: strategies that break their contract are caught, and blamed by name."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import InstallPlugin

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Vote
from penstock.testing.check import CheckResult, Step
from penstock.testing.crash import explore, plot_for

# Plugin source, the strategy, the step that must fail, and a word of what it must say.
BROKEN = {
    "a writer whose descriptor is another file's": ("""
        import os
        from penstock import SegmentWriter, hookimpl
        from penstock_alloc.writers import MmapChannel, MmapWriter
        class Channel(MmapChannel):
            "Lends a descriptor that syncs something else."
            @property
            def descriptor(self):
                return 0
        class Stray(MmapWriter):
            name = "stray"
            def open(self, file, capacity, position):
                return Channel(file, capacity)
        @hookimpl
        def penstock_register_writer():
            return [Stray]
        """, "write.stray", "test_what_it_lends_is_the_file_itself", "assert"),
    "a policy that thinks there is nothing to flush": ("""
        from penstock import FlushPolicy, hookimpl
        class Clever(FlushPolicy):
            "Passes over a request where all is durable, and whoever asked is never told."
            name = "clever"
            waits = True
            def request(self):
                if self.flusher.flushed_offset < self.flusher.wrote_offset:
                    self.flusher.flush()
        @hookimpl
        def penstock_register_flush():
            return [Clever]
        """, "flush.clever", "test_where_puts_wait_a_request_always_flushes", "assert"),
    "a writer that hides a failed sync": ("""
        from penstock_alloc.writers import MmapChannel, MmapWriter
        from penstock import hookimpl
        class Channel(MmapChannel):
            descriptor = None
            def flush(self):
                try:
                    super().flush()
                except OSError:
                    pass
        class Hider(MmapWriter):
            "Hides a failed sync."
            name = "hider"
            def open(self, file, capacity, position):
                return Channel(file, capacity)
        @hookimpl
        def penstock_register_writer():
            return [Hider]
        """, "write.hider", "test_a_failed_sync_is_told", "DID NOT RAISE"),
    "a writer that keeps in memory what it says is readable": ("""
        from penstock_alloc.writers import TransientPoolWriter
        from penstock import hookimpl
        class Forgetful(TransientPoolWriter):
            "Says that it commits at once, and does not."
            name = "forgetful"
            commits_at_once = True
        @hookimpl
        def penstock_register_writer():
            return [Forgetful]
        """, "write.forgetful", "crash_exploration", "the segment writer lost it"),
    "an allocator that brings old records back": ("""
        from penstock_alloc.allocators import RecycleAllocator
        from penstock import hookimpl
        class Stale(RecycleAllocator):
            "Uses files again without erasing them."
            name = "stale"
            def _fill_with_zeros(self, spare):
                pass
        @hookimpl
        def penstock_register_allocator():
            return [Stale]
        """, "alloc.stale", "test_old_bytes_never_come_back", "old record"),
    "a flush policy that ignores requests": ("""
        from penstock import FlushPolicy, hookimpl
        class Lazy(FlushPolicy):
            "Never flushes."
            name = "lazy"
            def request(self):
                pass
        @hookimpl
        def penstock_register_flush():
            return [Lazy]
        """, "flush.lazy", "test_a_request_is_met_soon", "assert 0 == 100"),
    "a dispatcher that claims too much": ("""
        from penstock_index.hash_index import HashIndexDispatcher
        from penstock import hookimpl
        class Boaster(HashIndexDispatcher):
            "Claims what it has not got."
            name = "boaster"
            def flush(self):
                return super().flush() + 1
        @hookimpl
        def penstock_register_dispatcher():
            return [Boaster]
        """, "index.boaster", "test_flush_claims_no_more_than_its_progress", "assert"),
    "a dispatcher that loses keys": ("""
        from penstock_index.hash_index import HashIndexDispatcher
        from penstock import hookimpl
        class Loser(HashIndexDispatcher):
            "Leaves some out."
            name = "loser"
            def candidates(self, topic, key, begin_ms, end_ms):
                return (c for c in super().candidates(topic, key, begin_ms, end_ms) if c % 7)
        @hookimpl
        def penstock_register_dispatcher():
            return [Loser]
        """, "index.loser", "test_no_record_with_the_key_is_left_out", "assert"),
    "a dispatcher that keeps what was cut": ("""
        from penstock_index.hash_index import HashIndexDispatcher
        from penstock import hookimpl
        class Keeper(HashIndexDispatcher):
            "Lowers its progress, and erases nothing."
            name = "keeper"
            def truncate(self, log_offset):
                self._progress = min(self._progress, log_offset)
        @hookimpl
        def penstock_register_dispatcher():
            return [Keeper]
        """, "index.keeper", "test_what_was_cut_is_gone_when_other_records_come_there", "assert"),
    "a queue index whose trim is off by one": ("""
        from penstock_index.consume_queue import ConsumeQueueDispatcher
        from penstock import hookimpl
        class Trimmer(ConsumeQueueDispatcher):
            "Takes the first record that is left as well."
            name = "trimmer"
            def trim(self, log_offset):
                super().trim(log_offset + 1)
        @hookimpl
        def penstock_register_dispatcher():
            return [Trimmer]
        """, "index.trimmer", "test_trim_takes_no_entry_too_many_and_none_too_few", "assert"),
    "a retention policy that raises on an empty log": ("""
        from penstock import RetentionPolicy, hookimpl
        from penstock.contracts import Vote
        class Hasty(RetentionPolicy):
            "Looks at the first segment without asking whether there is one."
            name = "hasty"
            def vote(self, segments, now_ms, disk):
                return Vote(int(segments[0].last_write_ms < now_ms), "old")
        @hookimpl
        def penstock_register_retention():
            return [Hasty]
        """, "retention.hasty", "test_odd_clocks_disks_and_logs", "IndexError"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_strategy_is_caught_and_blamed(
    case: str, install_plugin: InstallPlugin, tmp_path: Path
) -> None:
    source, name, step, word = BROKEN[case]
    install_plugin("penstock-broken", source)
    path = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "plugins", "check", name, "--step", step, "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["passed"] is False
    assert step in verdict["sentence"]
    assert word in verdict["sentence"]
    assert "penstock-broken 1.0 (plugin 'penstock_broken')" in verdict["sentence"]
    assert "the plugin is at fault" in verdict["sentence"]
    assert "your stores were not touched" in verdict["sentence"]


class KeepTwo(RetentionPolicy):
    """Deletes whenever it is asked."""

    name = "keep-two"

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        return Vote(max(len(segments) - 2, 0), "two are kept")


def test_a_policy_that_deletes_during_the_story_is_not_blamed() -> None:
    outcomes = list(explore(plot_for(KeepTwo, seed=1), cases=80))
    assert {outcome.problem for outcome in outcomes} == {""}


def test_a_step_that_fails_for_the_built_in_strategy_too_blames_nobody() -> None:
    given: dict[str, Any] = {"kind": "flush", "name": "every", "contract": "FlushPolicy"}
    verdict = CheckResult(
        **given,
        plugin="every",
        distribution="penstock-every",
        version="1.0",
        steps=[Step(name="test_x", about="x", failure="OSError: no space")],
        blames_strategy=False,
    )
    assert "this machine or Penstock is at fault, not" in verdict.sentence
