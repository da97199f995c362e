"""`penstock restore`: lists what an archive has, and makes a store from it."""

import json
from pathlib import Path

from click.testing import CliRunner, Result
from tests.shipped import Shipped, bodies

from penstock_replicate.commands.restore import command
from penstock_replicate.ship.ship_errors import ArchiveError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def made(tmp_path: Path) -> Path:
    with Shipped(tmp_path / "store", tmp_path / "archive") as shipped:
        for number in range(3):
            shipped.put(20, number * 20)
            shipped.ship()
    return tmp_path / "archive"


def test_a_store_is_restored(tmp_path: Path) -> None:
    archive = made(tmp_path)
    done = run(archive, tmp_path / "copy")
    assert done.exit_code == 0, done.output
    assert "restored" in done.output
    assert bodies(tmp_path / "copy") == bodies(tmp_path / "store")
    done = run(archive, tmp_path / "other", "--offset", 1000, "--json", "--quiet")
    about = json.loads(done.output)
    assert about["log_end"] <= 1000
    assert about["path"] == str(tmp_path / "other")
    done = run(archive, tmp_path / "now", "--time", "now", "--quiet")
    assert (done.exit_code, done.output) == (0, "")


def test_what_can_be_restored_is_listed(tmp_path: Path) -> None:
    archive = made(tmp_path)
    done = run(archive, "--list")
    assert done.exit_code == 0
    assert "history" in done.output
    about = json.loads(run(archive, "--list", "--json").output)
    assert [each["generation"] for each in about["generations"]] == [1, 2, 3]
    assert about["spans"][0]["begin"] == 0


def test_misuse_is_named(tmp_path: Path) -> None:
    archive = made(tmp_path)
    assert "name the TARGET" in run(archive).output
    assert "leave TARGET out" in run(archive, tmp_path / "x", "--list").output
    assert run(archive, tmp_path / "x", "--time", "never").exit_code == 2
    assert isinstance(run(tmp_path, tmp_path / "x").exception, ArchiveError)
    assert isinstance(run(archive, tmp_path / "x", "--time", "1h").exception, ArchiveError)
    assert not (tmp_path / "x").exists()
