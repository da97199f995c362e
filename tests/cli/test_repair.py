"""The verbs verify --deep and repair as a user runs them: exit codes, JSON, what they say."""

import shutil
from pathlib import Path

import pytest
from tests.cli.test_cli import lines, run
from tests.unit.integrity.test_verification import SEGMENT, make, segment
from tests.unit.repairs.test_repair import two_bytes

import penstock


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("cli") / "data")


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "data", copy_function=shutil.copy2)
    return tmp_path


@pytest.fixture(autouse=True)
def no_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests of the command line ask for a segment size that these stores have not."""
    from tests.cli import test_cli  # noqa: PLC0415 - its environment is what `run` uses

    monkeypatch.delitem(test_cli.ENVIRONMENT, "PENSTOCK_GEOMETRY__SEGMENT_BYTES")


def test_a_sound_store_is_told_so(place: Path) -> None:
    done = run("repair", "data", cwd=place)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"the store needs no repair" in done.stderr
    assert run("verify", "data", "--deep", "--jobs", "1", "--quiet", cwd=place).returncode == 0


def test_verify_deep_says_where_and_what_now(place: Path) -> None:
    two_bytes(segment(place / "data", 1), 16)
    assert run("verify", "data", cwd=place).returncode == 0
    found = run("verify", "data", "--deep", "--jobs", "2", "--json", cwd=place)
    assert found.returncode == 1
    (one,) = lines(found)
    assert (one["part"], one["position"], one["log_offset"]) == ("digest", 0, SEGMENT)
    assert "--accept" in str(one["what_now"])
    assert (
        "what to do: " in run("verify", "data", "--deep", "--jobs", "1", cwd=place).stdout.decode()
    )
    assert run("verify", "data", "--jobs", "0", cwd=place).returncode == 2


def test_repair_tells_first_and_does_it_when_told(place: Path) -> None:
    shutil.rmtree(place / "data" / "index")
    planned = run("repair", "data", "--json", cwd=place)
    assert planned.returncode == 1
    assert not (place / "data" / "index").exists()
    *steps, summary = lines(planned)
    assert [step["action"] for step in steps] == ["rebuild"]
    assert (summary["steps"], summary["applied"], summary["saved_to"]) == (1, False, None)
    assert b"run it again with --apply" in run("repair", "data", cwd=place).stderr
    done = run("repair", "data", "--apply", cwd=place)
    assert done.returncode == 0, done.stderr
    assert b"What was done" in done.stdout
    assert run("verify", "data", "--deep", "--jobs", "1", cwd=place).returncode == 0


def test_damage_that_is_left_is_told_until_it_is_cut(place: Path) -> None:
    two_bytes(segment(place / "data", 1), 95)
    left = run("repair", "data", "--apply", cwd=place)
    assert left.returncode == 1
    assert b"not repaired: " in left.stdout
    done = run("repair", "data", "--apply", "--cut", "--json", cwd=place)
    assert done.returncode == 0
    *steps, summary = lines(done)
    assert steps[0]["action"] == "cut"
    assert summary["standing"] == 0
    assert Path(str(summary["saved_to"])).is_dir()
    assert run("verify", "data", "--deep", "--jobs", "1", cwd=place).returncode == 0


def test_damage_that_is_quarantined_is_a_remark(place: Path) -> None:
    two_bytes(segment(place / "data", 1), 95)
    done = run("repair", "data", "--apply", "--quarantine", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    step, *_ = lines(done)
    assert (step["action"], step["position"]) == ("quarantine", 0)
    found = run("verify", "data", "--deep", "--jobs", "1", "--json", cwd=place)
    assert found.returncode == 0
    assert [one["is_note"] for one in lines(found)] == [True]
    assert run("put", "data", "t", "goes on", cwd=place).returncode == 0
    assert run("repair", "data", "--cut", "--quarantine", cwd=place).returncode == 2


def test_a_store_in_use_is_refused_with_its_exit_code(place: Path) -> None:
    with penstock.open(place / "data", environ={}):
        assert run("repair", "data", "--apply", cwd=place).returncode == 3
    assert run("repair", ".", cwd=place).returncode == 4
