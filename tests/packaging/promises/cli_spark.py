"""`pip install 'penstock[cli,spark]'`: the jobs as commands."""

import contextlib
import io
from pathlib import Path

import penstock
from penstock_tools.cli.root import run

with penstock.open("data", environ={}) as store:
    store.put("orders", b"two boxes of pears", queue=0, keys=["A-17"])
root = str(Path("data").absolute())
out = io.StringIO()
with contextlib.redirect_stdout(out):
    assert run(["spark", "verify", root, "--master", "local[1]", "--json", "--quiet"]) == 0
assert "summary" in out.getvalue(), out.getvalue()
