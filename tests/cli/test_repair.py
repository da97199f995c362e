"""The verbs verify --deep and repair as a user runs them: exit codes, JSON, what they say."""

import shutil
from pathlib import Path

import pytest
from tests.cli.commands import run
from tests.unit.integrity.test_verification import SEGMENT, make, segment
from tests.unit.repairs.test_repair import two_bytes

import penstock


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("cli") / "data")


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "data", copy_function=shutil.copy2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("place")
def test_a_sound_store_is_told_so() -> None:
    done = run("repair", "data")
    done.expect(0, err="the store needs no repair")
    assert done.out == ""
    run("verify", "data", "--deep", "--jobs", "1", "--quiet").expect(0)


def test_verify_deep_says_where_and_what_now(place: Path) -> None:
    two_bytes(segment(place / "data", 1), 16)
    run("verify", "data").expect(0)
    found = run("verify", "data", "--deep", "--jobs", "2", "--json")
    (one,) = found.rows
    assert (found.code, one["part"], one["position"]) == (1, "digest", 0)
    assert (one["log_offset"], "--accept" in one["what_now"]) == (SEGMENT, True)
    run("verify", "data", "--deep", "--jobs", "1").expect(1, out="what to do: ")
    run("verify", "data", "--jobs", "0").expect(2)


def test_repair_tells_first_and_does_it_when_told(place: Path) -> None:
    shutil.rmtree(place / "data" / "index")
    planned = run("repair", "data", "--json")
    planned.expect(1)
    assert not (place / "data" / "index").exists()
    *steps, summary = planned.rows
    assert [step["action"] for step in steps] == ["rebuild"]
    assert (summary["steps"], summary["applied"], summary["saved_to"]) == (1, False, None)
    run("repair", "data").expect(1, err="run it again with --apply")
    run("repair", "data", "--apply").expect(0, out="What was done")
    run("verify", "data", "--deep", "--jobs", "1").expect(0)


def test_damage_that_is_left_is_told_until_it_is_cut(place: Path) -> None:
    two_bytes(segment(place / "data", 1), 95)
    run("repair", "data", "--apply").expect(1, out="not repaired: ")
    done = run("repair", "data", "--apply", "--cut", "--json")
    done.expect(0)
    *steps, summary = done.rows
    assert steps[0]["action"] == "cut"
    assert summary["standing"] == 0
    assert Path(summary["saved_to"]).is_dir()
    run("verify", "data", "--deep", "--jobs", "1").expect(0)


def test_damage_that_is_quarantined_is_a_remark(place: Path) -> None:
    two_bytes(segment(place / "data", 1), 95)
    done = run("repair", "data", "--apply", "--quarantine", "--json")
    done.expect(0)
    step, *_ = done.rows
    assert (step["action"], step["position"]) == ("quarantine", 0)
    found = run("verify", "data", "--deep", "--jobs", "1", "--json")
    assert (found.code, [one["is_note"] for one in found.rows]) == (0, [True])
    run("put", "data", "t", "goes on").expect(0)
    run("repair", "data", "--cut", "--quarantine").expect(2)


def test_a_store_in_use_is_refused_with_its_exit_code(place: Path) -> None:
    with penstock.open(place / "data", environ={}):
        run("repair", "data", "--apply").expect(3)
    run("repair", ".").expect(4)
