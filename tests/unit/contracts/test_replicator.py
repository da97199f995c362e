"""What a replicator says of its copies, by the contract's own words."""

from pathlib import Path

from tests.replicators import ScriptedOptions, ScriptedReplicator

from penstock.contracts.replicator import NO_REPLICATOR, CopyState
from penstock.testing import make_context
from penstock.testing.suites.replicator import RecordedLog


def test_the_summary_has_the_role_and_a_line_for_each_copy(tmp_path: Path) -> None:
    made = ScriptedReplicator(ScriptedOptions(), make_context(tmp_path), RecordedLog(tmp_path))
    assert [line.text for line in made.summary()] == ["master (scripted), 0 copies, 0 in sync"]
    near = CopyState(name="a:1", kind="penstock", received_offset=90, flushed_offset=80, lag_bytes=10, lag_ms=1500)  # fmt: skip
    far = CopyState(name="b:2", kind="rocketmq", received_offset=0, lag_bytes=100, in_sync=False, last_error="refused")  # fmt: skip
    made.states = [near]
    assert made.summary()[0].text == "master (scripted), 1 copy, 1 in sync"
    made.states = [near, far]
    head, first, second = made.summary()
    assert head.text == "master (scripted), 2 copies, 1 in sync"
    assert head.value == {"role": "master", "use": "scripted", "copies": 2, "lag_bytes": 100}
    assert (first.key, first.what, first.text) == ("copy_0", "copy a:1", "penstock, in sync, 10 bytes, 1.5 s behind")  # fmt: skip
    assert second.text == "rocketmq, not in sync, 100 bytes, 0.0 s behind; last error: refused"
    assert second.value["last_error"] == "refused"


def test_no_replicator_has_a_name() -> None:
    assert NO_REPLICATOR == "none"
