"""Which defaults a store has depends on who made it, and it keeps them."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL, OpenStore, unpack

import penstock
from penstock.config.sources import build_config, gather
from penstock.errors import CorruptionError, GeometryError
from penstock.files import Files
from penstock.plugins.registry import load_registry
from penstock.staged import encoding_for
from penstock.store.open import Opener, make_opener
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_tools.cli.root import run

GOLDEN = Path(__file__).parents[2] / "golden"
DAY_MS = 24 * 3_600_000


def opener(root: Path, **settings: Any) -> Opener:
    return make_opener(root, None, None, None, None, {}, settings)


def defaults(root: Path, **settings: Any) -> tuple[str, str | None, list[str] | None]:
    made = opener(root, **settings)
    return made.profile.name, made.config.log.checksum, made.config.retention.use


def opened(root: Path, **settings: Any) -> Store:
    return penstock.open(root, environ={}, **settings)


def unpacked(name: str, target: Path) -> Path:
    unpack(GOLDEN / f"{name}.tar.gz", target)
    return target / "store"


def test_a_new_store_keeps_everything_and_remembers_its_profile(tmp_path: Path) -> None:
    root = tmp_path / "s"
    penstock.open(root, environ={}).close()
    assert defaults(root)[2] == []
    about = json.loads((root / "penstock" / "geometry.json").read_text())
    assert (about["profile"], about["queue_entries"]) == ("embedded", 10_000)
    # Asked for at a later opening, another profile does not change what the store is.
    penstock.open(root, environ={}, profile="rocketmq").close()
    assert defaults(root)[0] == "embedded"


def test_the_rocketmq_profile_is_kept_without_asking_again(tmp_path: Path) -> None:
    root = tmp_path / "s"
    opened(root, profile="rocketmq", **{"geometry.segment_bytes": 65536}).close()
    assert defaults(root) == ("rocketmq", "crc32", ["age"])
    assert opener(root).geometry().queue_entries == 300_000
    penstock.open(root, environ={}).close()
    assert defaults(root) == ("rocketmq", "crc32", ["age"])
    with pytest.raises(GeometryError):
        opened(root, **{"geometry.segment_bytes": 131072})


@pytest.mark.parametrize("name", ["java-4.9.8-clean", "java-5.3.3-clean"])
def test_nothing_is_deleted_unasked_from_a_brokers_directory(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path)
    assert defaults(root) == ("broker", "crc32", [])
    with penstock.open(root, environ={}, profile="rocketmq") as store:
        store.put("topic1", b"once, as asked for", queue=0)
    assert defaults(root) == ("broker", "crc32", []), "what was asked for once is not kept"


def test_explicit_settings_beat_every_profile(tmp_path: Path) -> None:
    root = unpacked("java-5.3.3-clean", tmp_path)
    given = {"retention": [], "log.checksum": "crc32+record"}
    for where in (root, tmp_path / "new"):
        assert defaults(where, **given)[1:] == ("crc32+record", [])
        assert defaults(where, profile="rocketmq", **given)[1:] == ("crc32+record", [])
    assert defaults(tmp_path / "new", profile="rocketmq") == ("rocketmq", "crc32", ["age"])


@pytest.mark.slow
@pytest.mark.parametrize("noted", ["huge", ["embedded"], 7, None])
def test_a_profile_nobody_knows_is_corruption_not_a_guess(noted: Any, open_small: OpenStore, tmp_path: Path) -> None:  # fmt: skip
    open_small().close()
    path = tmp_path / "store" / "penstock" / "geometry.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "profile": noted}))
    with pytest.raises(CorruptionError, match="embedded, rocketmq, broker"):
        open_small()
    path.unlink()
    open_small().close()
    assert defaults(tmp_path / "store")[0] == "broker", "without the note nothing is deleted"


def test_a_store_whose_making_was_cut_short_is_still_new(tmp_path: Path) -> None:
    """Without its note a folder with a log is taken for a broker's, so the note comes first."""
    root = tmp_path / "s"

    class Dying(Files):
        def make_folder(self, path: Path) -> list[Path]:
            if path.name == "consumequeue":
                raise KeyboardInterrupt
            return super().make_folder(path)

    with pytest.raises(KeyboardInterrupt):
        penstock.open(root, environ={}, files=Dying(), profile="rocketmq")
    assert (root / "commitlog").is_dir()
    assert defaults(root)[0] == "rocketmq"


def test_records_staged_for_several_stores_are_valid_in_each(tmp_path: Path) -> None:
    old, new = unpacked("java-5.3.3-clean", tmp_path), tmp_path / "new"
    settings: dict[str, Any] = {"log.checksum": "crc32+record"}
    assert encoding_for(old, new, environ={}, **settings).crc_property
    assert not encoding_for(old, environ={}).crc_property


@pytest.mark.slow
def test_weeks_later_a_new_store_has_every_message(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    given = build_config(gather(None, {}, SMALL), load_registry())
    with Opener(tmp_path / "s", given, load_registry(), Files(), clock, workers).open_for_writing() as store:  # fmt: skip
        for number in range(300):
            store.put("t", b"%d" % number + b"x" * 1000, queue=0)
        store.flush()
        for _ in range(24 * 30):
            clock.now_ms += 3_600_000
            workers.run("penstock-retain")
        assert store.min_offset("t", 0) == 0
        assert sum(1 for _ in store.scan("t")) == 300


def test_a_deletion_is_logged_as_a_warning_with_segment_policy_and_reason(
    open_small: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small(retention=["age", "size"], **{"retention.size.bytes_max": 0, "retention.pause_ms": 0}) as store:  # fmt: skip
        for number in range(200):
            store.put("t", b"%d" % number + b"x" * 1000, queue=0)
        caplog.clear()
        gone = store.retain()
        log_name = f"{0:020d}"
        asked = store.discard_before(log_offset=4 * 65536)
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    told = [text for text in told if text.startswith("deleted segment")]
    assert len(told) == gone + asked
    assert gone > 1
    assert log_name in told[0]
    assert "log offsets 0 to 65536, on request of policy size: the log" in told[0]
    assert "policy age" not in told[0], "it had no vote for it"


def test_the_verb_config_shows_what_holds_for_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "s"
    opened(root, profile="rocketmq", **{"geometry.segment_bytes": 65536}).close()

    def shown(*arguments: str) -> dict[str, Any]:
        assert run(["config", *arguments, "--show-origin", "--json"]) == 0
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        return {line["key"]: (line["value"], line["origin"]) for line in lines}

    old = shown(str(root))
    assert old["retention.use"] == (["age"], "profile rocketmq")
    assert old["geometry.queue_entries"][0] == 300_000
    new = shown("--set", "log.checksum=crc32")
    assert new["retention.use"] == ([], "profile embedded")
    assert new["log.checksum"] == ("crc32", "--set")
    assert new["geometry.queue_entries"] == (10_000, "profile embedded")
    assert new["profile"] == ("embedded", "default")


def test_options_of_a_policy_that_is_not_used_are_warned_of(
    open_small: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"retention.age.reserved_hours": 1}
    open_small(**options).close()
    assert "retention.age.reserved_hours is set, but retention.use is []" in caplog.text
    caplog.clear()
    open_small(retention=["age"], **options).close()
    assert "is set, but" not in caplog.text


@pytest.mark.parametrize(("profile", "synced_after"), [("embedded", 1), ("rocketmq", 20)])
def test_a_lone_message_is_on_disk_half_a_second_later_unless_rocketmqs_values_hold(
    profile: str, synced_after: int, tmp_path: Path
) -> None:
    """It was flushed after ten seconds, since RocketMQ's least pages held everywhere."""
    clock, workers = ManualClock(), ManualWorkers()
    sizes: dict[str, Any] = {"geometry.segment_bytes": 65536}
    with open_store(tmp_path / "s", clock=clock, spawn=workers, profile=profile, **sizes) as store:
        receipt = store.put("t", b"alone", queue=0)
        looks = 0
        while store.stats()["flushed_offset"] < receipt.log_offset + receipt.size:
            clock.now_ms += 500
            assert workers.run("penstock-flush") == 0.5
            looks += 1
    assert looks == synced_after
