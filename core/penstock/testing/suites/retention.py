"""The test suite for the contract of a retention policy."""

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Context, DiskUse, RetentionPolicy, SegmentInfo
from penstock.errors import ReadOnlyError
from penstock.testing.control import ManualClock, ManualWorkers
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import SMALL, open_store
from penstock.testing.suites.base import ContractSuite

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


class RetentionPolicyContract(ContractSuite):
    """Subclass this and return your policy's class from `strategy`."""

    contract = RetentionPolicy

    @pytest.fixture
    def policy(
        self, strategy: type[RetentionPolicy], options: dict[str, Any], context: Context
    ) -> RetentionPolicy:
        """Return a policy that has not voted yet."""
        return strategy(strategy.Options(**options), context)

    @staticmethod
    def segments(ages_hours: list[float], size: int = 1 << 30) -> list[SegmentInfo]:
        """Return segments of these ages, oldest first."""
        return [
            SegmentInfo(number * size, size, int(NOW_MS - age * HOUR_MS), Path(f"{number:020d}"))
            for number, age in enumerate(ages_hours)
        ]

    @pytest.mark.parametrize("seed", range(5))
    def test_a_vote_is_a_number_of_the_oldest_and_a_reason(
        self, policy: RetentionPolicy, seed: int
    ) -> None:
        """A vote is valid for any log, any hour and any disk use."""
        rng = random.Random(seed)
        print("seed", seed)
        for _ in range(50):
            ages = sorted((rng.uniform(0, 500) for _ in range(rng.randrange(1, 30))), reverse=True)
            disk = DiskUse(rng.randrange(1 << 40), rng.randrange(1 << 40))
            now = NOW_MS + rng.randrange(48) * HOUR_MS
            vote = policy.vote(self.segments(ages), now, disk)
            assert 0 <= vote.expired_count <= len(ages)
            assert vote.reason.strip()
            assert isinstance(vote.refuse_writes, bool)

    @pytest.mark.parametrize("now_ms", [0, NOW_MS, 1 << 41])
    @pytest.mark.parametrize("disk", [(0, 0), (0, 1), (1, 0), (1 << 60, 1 << 60)])
    def test_odd_clocks_disks_and_logs(
        self, policy: RetentionPolicy, now_ms: int, disk: tuple[int, int]
    ) -> None:
        """`vote` raises nothing for unusual clocks, disks and logs: the kernel would only log the exception."""
        for segments in (
            self.segments([]), self.segments([5.0]), self.segments([-100.0, 1e4, 0.0]),
        ):  # fmt: skip
            assert policy.vote(segments, now_ms, DiskUse(*disk)).expired_count <= len(segments)

    def test_it_does_not_touch_the_disk(self, policy: RetentionPolicy, files: FaultyFiles) -> None:
        """The policy makes no file system calls: everything it needs is passed to `vote`."""
        before = dict(files.plan.counts)
        policy.vote(self.segments([100.0, 50.0, 1.0]), NOW_MS, DiskUse(90, 10))
        assert files.plan.counts == before

    def test_it_refuses_writes_only_if_it_says_so(
        self, policy: RetentionPolicy, strategy: type[RetentionPolicy]
    ) -> None:
        """On a full disk the policy refuses writes if and only if it has the capability "refuses-writes"."""
        vote = policy.vote(self.segments([1.0, 0.5]), NOW_MS, DiskUse(1000, 0))
        assert vote.refuse_writes == ("refuses-writes" in strategy.capabilities)

    def test_a_store_with_it_loses_only_its_oldest(
        self, strategy: type[RetentionPolicy], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Whatever the policy votes, the last segment is never deleted, and all remaining messages can be read."""
        clock = ManualClock()
        given = {f"retention.{strategy.name}.{key}": value for key, value in options.items()}
        chosen: dict[str, Any] = {"retention": [strategy.name], **given}
        with open_store(
            tmp_path / "s", strategies=[strategy], clock=clock, spawn=ManualWorkers(), **chosen
        ) as store:
            sent = 0
            for _ in range(24):
                clock.now_ms += 5 * HOUR_MS
                for _ in range(10):
                    try:
                        store.put("t", b"%d:" % sent + b"x" * 3000)
                        sent += 1
                    except ReadOnlyError:
                        break
                store.flush()
                store.retain()
            kept = [int(m.body.partition(b":")[0]) for m in store.scan("t")]
            assert kept == list(range(sent - len(kept), sent))
            assert store.stats()["segments"] >= 1
            if sent * 3000 > SMALL.segment_bytes:
                assert kept
            assert not list(store.verify())
