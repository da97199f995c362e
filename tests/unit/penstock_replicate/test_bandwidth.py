import asyncio

from penstock_replicate.master.bandwidth import Bandwidth


def test_bytes_pass_at_the_rate() -> None:
    now = 100.0
    limit = Bandwidth(1000, lambda: now)
    assert limit.delay_s(500) == 0
    # A pause earns a burst of a quarter of a second.
    assert limit.delay_s(500) == 0.25
    assert limit.delay_s(1) == 0.75
    now = 200.0
    assert limit.delay_s(10_000) == 0
    assert limit.delay_s(1) == 9.75


def test_without_a_limit_nothing_waits() -> None:
    limit = Bandwidth(0, lambda: 0.0)
    asyncio.run(limit.take(1 << 40))
    assert not limit.is_limited
    assert limit.delay_s(1) == 0
