"""One suite of tests for each contract; a strategy that passes its suite may be trusted by the kernel.

Subclass the suite and fill one fixture::

    from penstock.testing import FlushPolicyContract

    class TestEvery(FlushPolicyContract):
        @pytest.fixture
        def strategy(self):
            return EveryFlush

A second fixture, `options`, may give a dictionary of the strategy's options. What a strategy can do
beyond its contract's least it names in `capabilities`, and the suite tests that as well.

`base` is what all suites share; then one module a contract: `flush`, `writer`, `allocator`, `dispatcher`, `indexes`, `retention`.
"""
