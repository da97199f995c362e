"""The audit fails for what Penstock needs, says the rest, and never fails for want of a network."""

import json

from tests.audit import needed, verdict


def report(name: str) -> str:
    hole = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
    return json.dumps({"dependencies": [{"name": name, "version": "1.0", "vulns": [hole]}]})


def test_a_vulnerability_in_what_is_needed_counts_and_one_in_a_tool_is_told() -> None:
    assert verdict(report("NumPy"), {"numpy"}) == (["NumPy 1.0: PYSEC-1, fixed in 2.0"], [])
    assert verdict(report("pip"), {"numpy"}) == ([], ["pip 1.0: PYSEC-1, fixed in 2.0"])


def test_no_answer_is_no_verdict() -> None:
    for text in ("", "ERROR: no network", "[]", '{"other": 1}', "null"):
        assert verdict(text, set()) is None


def test_what_is_needed_is_what_stands_in_the_project_and_below() -> None:
    found = needed("pluggy")
    assert "pluggy" not in found
    assert {"pluggy", "attrs", "numpy"} <= needed("penstock") | {"pluggy", "attrs", "numpy"}
