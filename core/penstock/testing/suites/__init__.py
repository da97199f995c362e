"""One test suite for each contract; the kernel can rely on a strategy that passes its suite.

Subclass the suite and implement one fixture::

    from penstock.testing import FlushPolicyContract

    class TestEvery(FlushPolicyContract):
        @pytest.fixture
        def strategy(self):
            return EveryFlush

A second fixture, `options`, may return a dictionary of the strategy's options. A strategy lists the optional features
that it has in `capabilities`, and the suite tests them as well.

`policies` has the base of all suites, and those of flush policies, retention policies and extensions; `storage` those
of writers and allocators, `dispatcher` those of dispatchers and indexes, `replicator` that of replicators.
"""
