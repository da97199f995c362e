"""The audit fails for what Penstock needs, says the rest, and never takes no answer for none found."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.audit import asked, installed, judged, notes, verdict

from tests import audit

NOTE = '[[note]]\npackage = "numpy"\nid = "PYSEC-1"\ndate = 2026-01-31\nwhy = "not reached"\n'


def report(name: str) -> str:
    hole = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
    return json.dumps({"dependencies": [{"name": name, "version": "1.0", "vulns": [hole]}]})


def skipped(name: str) -> str:
    return json.dumps({"dependencies": [{"name": name, "skip_reason": "not found"}]})


def test_a_vulnerability_in_what_is_needed_counts_and_one_in_another_package_is_told() -> None:
    found, other = verdict(report("NumPy"), {"numpy"}), verdict(report("pip"), {"numpy"})
    assert found is not None
    assert other is not None
    assert found.ours == [("numpy", "PYSEC-1", "NumPy 1.0: PYSEC-1, fixed in 2.0")]
    assert (other.ours, other.others[0][2]) == ([], "pip 1.0: PYSEC-1, fixed in 2.0")


def test_no_answer_is_no_verdict() -> None:
    for text in ("", "ERROR: no network", "[]", '{"other": 1}', "null"):
        assert verdict(text, set()) is None


def test_a_finding_needs_a_dated_note_and_a_note_its_finding(tmp_path: Path) -> None:
    (tmp_path / "notes.toml").write_text(NOTE)
    noted = notes(tmp_path / "notes.toml")
    found, none = verdict(report("numpy"), {"numpy"}), verdict('{"dependencies": []}', {"numpy"})
    assert found is not None
    assert none is not None
    assert judged(found, {}) == ["numpy 1.0: PYSEC-1, fixed in 2.0"]
    assert judged(found, noted) == []
    assert judged(none, noted) == ["the note on numpy PYSEC-1 has no finding any more: remove it"]


@pytest.mark.parametrize("line", ["date = 2026-01-31\n", 'why = "not reached"\n'])
def test_a_note_without_a_date_or_a_reason_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "notes.toml").write_text(NOTE.replace(line, ""))
    with pytest.raises(ValueError, match="needs a date"):
        notes(tmp_path / "notes.toml")


def test_the_notes_of_this_project_can_be_read() -> None:
    assert notes() is not None


@pytest.mark.parametrize(("answer", "required", "code"), [
    (skipped("numpy"), "0", 0), (skipped("numpy"), "1", 1), ("", "0", 0), ("", "1", 1), ('{"dependencies": []}', "1", 0), (report("numpy"), "0", 1),
])  # fmt: skip
def test_an_index_without_an_answer_is_reported_and_fails_only_where_it_is_required(
    answer: str, required: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """An index that knew no package at all counted as one that knew of no vulnerability: "0 known vulnerabilities"."""
    done = subprocess.CompletedProcess([], 0, stdout=answer, stderr="")
    monkeypatch.setattr(audit, "ask", lambda _: done)
    monkeypatch.setattr(audit, "resolved", lambda _: {})
    monkeypatch.setattr(audit, "notes", dict)
    monkeypatch.setenv("PENSTOCK_REQUIRE_AUDIT", required)
    assert audit.main() == code
    assert ("not done" in capsys.readouterr().out) == (answer in ("", skipped("numpy")))


def test_every_extra_and_the_build_are_asked_about() -> None:
    lines = asked()
    for name in ("numpy", "click", "pyspark", "s3fs", "atheris", "pip-audit", "hatchling", "cython", "ziglang"):  # fmt: skip
        assert any(line.startswith(name) for line in lines), name
    found, missing = installed([*lines, "no-such-package>=1"])
    assert {"numpy", "pygments", "py4j", "botocore"} <= found.keys()
    assert "no-such-package>=1" in missing
