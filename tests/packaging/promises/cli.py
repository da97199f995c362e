"""`pip install 'penstock[cli]'`: the commands, all but those that read Parquet, run Spark, test plugins or draw plots.

Those name the extra that they need, before they have done anything.
"""

import contextlib
import io
import json
from importlib import import_module
from pathlib import Path

from penstock_tools.cli.root import own_verbs, run


def penstock(*words: str, code: int = 0) -> tuple[str, str]:
    """Run a command in this process; returns what it printed to standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = run(list(words))
    told = f"penstock {' '.join(words)} ended with {ended}\n{out.getvalue()}\n{err.getvalue()}"
    assert ended == code, told
    return out.getvalue(), err.getvalue()


def lacks(extra: str, *words: str) -> None:
    """Check that a command names the extra that it needs, and how to install it."""
    err = penstock(*words, code=2)[1]
    assert f"pip install 'penstock[{extra}]'" in err, f"penstock {' '.join(words)} said: {err}"


Path("events.ndjson").write_text('{"id": 4711, "kind": "paid"}\n{"id": 4712, "kind": "sent"}\n')
Path("events.csv").write_text("id,kind\n4713,paid\n")
Path("events.parquet").write_bytes(b"PAR1")

assert "0." in penstock("--version")[0]
for verb in own_verbs():
    assert "Usage:" in penstock(verb, "--help")[0]
for job in (
    path.stem
    for path in (Path(import_module("penstock_spark").__path__[0]) / "verbs").glob("[a-z]*.py")
):
    assert "Usage:" in penstock("spark", job, "--help")[0]

penstock("init", "data")
penstock("put", "data", "orders", "two boxes of pears", "--key", "A-17", "--tag", "created")
for source in ("events.ndjson", "events.csv"):
    penstock(
        "ingest", "data", source, "--topic", "events", "--key-field", "id", "--tag-field", "kind"
    )
found = penstock("find", "data", "events", "--key", "4711", "--json")[0]
assert json.loads(json.loads(found)["body"])["kind"] == "paid", found
assert len(penstock("read", "data", "events", "--json")[0].splitlines()) == 3
assert "pears" in penstock("tail", "data", "orders")[0]
identity = json.loads(found)["message_id"]
assert "4711" in penstock("get", "data", identity)[0]
for line in ("topics data", "groups data", "stat data", "config", "config data", "plugins"):
    assert penstock(*line.split())[0]
for line in ("verify data", "verify data --deep", "repair data", "retain data --dry-run"):
    penstock(*line.split())

penstock("topic", "create", "data", "invoices", "--queues", "2")
assert "invoices" in penstock("topic", "list", "data")[0]
penstock("put", "data", "orders", "later", "--delay-level", "1")
penstock("groups", "reset", "data", "billing", "--to", "earliest", "--topic", "orders")
assert "billing" in penstock("groups", "data")[0]
penstock("dlq", "list", "data")
penstock("topic", "delete", "data", "invoices", "--apply")

lacks("arrow", "ingest", "data", "events.parquet", "--topic", "events")
lacks("testing", "plugins", "check", "sync")
Path("measured").mkdir()
lacks("plots", "matrix", "measured", "--quick")
assert not any(Path("measured").iterdir())
lacks("spark", "spark", "verify", "data")
lacks("spark", "spark", "stats", "data")
lacks("spark", "spark", "reindex", "data")
lacks("spark", "spark", "export", "data", "--to", "exported")
lacks("spark", "spark", "replay", "data", "copied", "--only", "events")
lacks("spark", "spark", "compact", "data", "compacted", "events")
lacks("spark", "demo", "--path", "demonstrated")
lacks("arrow", "demo", "--no-spark", "--path", "demonstrated")
assert not Path("demonstrated").exists()
assert len(penstock("read", "data", "events", "--json")[0].splitlines()) == 3
