"""What the released stores answered of the golden directories by key, by time and by place. Needs no Java."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.golden.test_golden import unpacked
from tests.interop.compare import facts, shown_by_java

import penstock

HERE = Path(__file__).parent
ANSWERS = sorted(HERE.glob("*.answers.json"))


def asked(path: Path, target: Path) -> tuple[Path, dict[str, Any]]:
    archive = path.with_name(path.name.replace(".answers.json", ".tar.gz"))
    return unpacked(archive, target)[0], json.loads(path.read_text())


def test_both_versions_were_asked() -> None:
    assert [a.name for a in ANSWERS] == [
        f"java-{version}-clean.answers.json" for version in ("4.9.8", "5.3.3")
    ]


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.name)
def test_keys_find_what_java_found(path: Path, tmp_path: Path) -> None:
    root, answers = asked(path, tmp_path)
    with penstock.open(root, read_only=True) as store:
        hits = 0
        for one in answers["keys"]:
            there = one["topic"] in store.topics(system=True)
            with_key = store.find(one["key"], one["topic"], limit=64) if there else []
            found = {m.log_offset for m in with_key}
            # Java answers a record once for each key that fits, and does not check for collisions.
            assert found == set(one["log_offsets"]), (one["topic"], one["key"])
            hits += len(found)
        assert hits > 20


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.name)
def test_times_lead_where_java_went(path: Path, tmp_path: Path) -> None:
    root, answers = asked(path, tmp_path)
    with penstock.open(root, read_only=True) as store:
        for one in answers["times"]:
            if one["boundary"] is not None:  # 4.x picks by another rule
                ours = store.offset_at(
                    one["topic"], one["queue"], one["time_ms"] / 1000, boundary=one["boundary"]
                )
                assert ours == one["offset"], one


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.name)
def test_records_in_no_queue_are_there_by_id(path: Path, tmp_path: Path) -> None:
    root, answers = asked(path, tmp_path)
    assert {m["sys_flag"] & 0xC for m in answers["unqueued"]} == {0x4, 0xC}
    with penstock.open(root, read_only=True) as store:
        for one in answers["unqueued"]:
            magic = one.pop("magic")
            assert magic == -626843481
            assert facts(store.get(one["message_id"])) == shown_by_java(one)
