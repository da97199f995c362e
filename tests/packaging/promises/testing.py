"""`pip install 'penstock[testing]'`: the contract suites, in a test of a plugin's author; properties with Hypothesis."""

import subprocess
import sys
from pathlib import Path

import hypothesis

Path("test_mine.py").write_text("""\
import pytest
from penstock.testing import FlushPolicyContract
from penstock_flush.policies import SyncFlush


class TestSync(FlushPolicyContract):
    @pytest.fixture
    def strategy(self):
        return SyncFlush
""")
done = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
    capture_output=True, text=True, check=False,
)  # fmt: skip
assert done.returncode == 0, done.stdout + done.stderr
assert " passed" in done.stdout, done.stdout
assert hypothesis.__version__
