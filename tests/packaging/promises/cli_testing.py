"""`pip install 'penstock[cli,testing]'`: `penstock plugins check`, which runs a strategy through its contract's suite."""

import contextlib
import io

from penstock_tools.cli.root import run

out = io.StringIO()
with contextlib.redirect_stdout(out):
    assert run(["plugins", "check", "flush.sync", "--points", "2"]) == 0, out.getvalue()
assert "passed" in out.getvalue(), out.getvalue()
