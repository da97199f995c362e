import json
from pathlib import Path
from random import Random

import pytest

from penstock.testing import ManualClock, SimulatedDisk, make_context
from penstock.testing.faults import FaultyFiles
from penstock.testing.platter import Image, Survival
from penstock_messaging.delays.delay_offsets import DelayOffsets, text_of_table

FORM_4 = '{\n\t"offsetTable":{1:3,3:1\n\t}\n}'
FORM_5 = '{\n\t"dataVersion":{\n\t\t"counter":4,\n\t\t"stateVersion":2,\n\t\t"timestamp":17\n\t},\n\t"offsetTable":{1:3,3:1\n\t}\n}'


def opened(
    root: Path, content: str | bytes | None = None, spare: str | None = None
) -> DelayOffsets:
    """Return the table of a store with these files."""
    config = root / "config"
    config.mkdir(parents=True, exist_ok=True)
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (config / "delayOffset.json").write_bytes(data)
    if spare is not None:
        (config / "delayOffset.json.bak").write_text(spare)
    offsets = DelayOffsets(make_context(root))
    offsets.load()
    return offsets


def text(root: Path, name: str = "delayOffset.json") -> str:
    return (root / "config" / name).read_text()


@pytest.mark.parametrize(
    "content", [FORM_4, FORM_5, FORM_4.replace("1:", '"1":').replace("3:", '"3":')]
)
def test_the_forms_of_all_brokers_are_read(tmp_path: Path, content: str) -> None:
    offsets = opened(tmp_path, content)
    assert (offsets.get(1), offsets.get(3), offsets.get(2)) == (3, 1, 0)
    assert (offsets.known(), offsets.problem, offsets.is_saved) == ([1, 3], "", True)


def test_a_new_file_has_the_layout_of_a_broker(tmp_path: Path) -> None:
    offsets = opened(tmp_path)
    offsets.set(1, 3)
    offsets.set(3, 1)
    before = offsets.is_saved
    offsets.save()
    assert (before, offsets.is_saved) == (False, True)
    assert text(tmp_path) == '{\n\t"offsetTable":{"1":3,"3":1\n\t}\n}'
    assert not (tmp_path / "config" / "delayOffset.json.bak").exists()


def test_a_version_is_counted_on_and_unknown_fields_stay(tmp_path: Path) -> None:
    offsets = opened(tmp_path, FORM_5.replace("{\n", '{\n"zeta":[1],"alpha":null,', 1))
    offsets.set(18, 7)
    offsets.save()
    assert text(tmp_path) == (
        '{\n\t"alpha":null,\n\t"dataVersion":{\n\t\t"counter":5,\n\t\t"stateVersion":2,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"offsetTable":{"1":3,"3":1,"18":7\n\t},\n\t"zeta":[\n\t\t1\n\t]\n}'
    )
    assert 'counter":4' in text(tmp_path, "delayOffset.json.bak")
    offsets.set(18, 8)
    offsets.save()
    assert json.loads(text(tmp_path))["dataVersion"]["counter"] == 6


def test_an_offset_that_is_set_again_needs_no_write(tmp_path: Path) -> None:
    offsets = opened(tmp_path, FORM_4)
    offsets.set(1, 3)
    assert offsets.is_saved


@pytest.mark.parametrize(
    "entry", ['"x":1', '"01":1', '"-1":1', '"0":1', '"2":-1', '"2":1.5', '"2":true', '"2":"4"', '"2":9223372036854775808',
              '"2":null', f'"{"9" * 5000}":1', f'"2":{"9" * 5000}', '"²":1']
)  # fmt: skip
def test_an_entry_that_is_no_offset_is_not_used_and_stays(
    tmp_path: Path, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = opened(tmp_path, '{"offsetTable":{"1":3,' + entry + "}}")
    assert offsets.known() == [1]
    assert "is not used" in caplog.text
    offsets.set(4, 9)
    offsets.save()
    name, value = entry.split(":")
    assert f"{name}:" in text(tmp_path)
    assert value.strip('"') in text(tmp_path)


BROKEN = [
    "",
    "{",
    "[]",
    "null",
    '{"offsetTable":[]}',
    '{"offsetTable":7}',
    b"\xff\xfe",
    "[" * 100_000,
    '{"a":' * 50_000,
    "\0" * 4096,
]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_kept_and_its_spare_is_used(tmp_path: Path, content: str | bytes) -> None:
    offsets = opened(tmp_path, content, FORM_4)
    assert offsets.get(1) == 3
    assert "delayOffset.json cannot be read" in offsets.problem
    assert "delayOffset.json.bak is used" in offsets.problem
    offsets.set(1, 4)
    offsets.save()
    kept = (tmp_path / "config" / "delayOffset.json.unreadable").read_bytes()
    assert kept == (content if isinstance(content, bytes) else content.encode())
    assert text(tmp_path, "delayOffset.json.bak") == FORM_4
    again = opened(tmp_path)
    assert (again.get(1), again.get(3), again.problem) == (4, 1, "")


def test_without_a_readable_file_nothing_counts_as_delivered(tmp_path: Path) -> None:
    offsets = opened(tmp_path, "{", "{")
    assert offsets.known() == []
    assert "delivered again" in offsets.problem


def test_only_the_spare_is_there(tmp_path: Path) -> None:
    """A broker that is killed while it writes may leave only the spare."""
    offsets = opened(tmp_path, None, FORM_4)
    assert (offsets.get(1), offsets.problem) == (3, "")
    offsets.set(1, 5)
    offsets.save()
    assert text(tmp_path, "delayOffset.json.bak") == FORM_4


def test_a_lone_surrogate_survives(tmp_path: Path) -> None:
    offsets = opened(tmp_path, '{"offsetTable":{},"a":"\\ud800"}')
    offsets.set(1, 1)
    offsets.save()
    assert json.loads(text(tmp_path))["a"] == "\ud800"


def test_an_empty_table_is_written_as_one() -> None:
    assert text_of_table({"offsetTable": {}}) == '{\n\t"offsetTable":{}\n}'
    assert text_of_table({}) == "{}"


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    files = FaultyFiles()
    context = make_context(tmp_path, files=files)
    offsets = DelayOffsets(context)
    offsets.load()
    offsets.set(1, 1)
    offsets.save()
    for call in ("create", "pwrite", "sync", "rename"):
        offsets.set(1, offsets.get(1) + 1)
        files.plan.fail(call)
        with pytest.raises(OSError, match=r"."):
            offsets.save()
        assert not offsets.is_saved
        assert json.loads(text(tmp_path)) == {"offsetTable": {"1": 1}}
        files.plan.heal()
    offsets.save()
    assert json.loads(text(tmp_path)) == {"offsetTable": {"1": 5}}


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_crash_at_any_call_leaves_the_old_content_or_the_new(
    survival: Survival, is_broken: bool
) -> None:
    root = Path("/store")
    disk = SimulatedDisk(clock=ManualClock())
    context = make_context(root, files=disk)
    disk.make_folder_durably(root / "config")
    for name, content in (
        ("delayOffset.json.bak", FORM_4),
        ("delayOffset.json", "{" if is_broken else FORM_4),
    ):
        disk.write_whole(root / "config" / name, content.encode())
    offsets = DelayOffsets(context)
    offsets.load()
    images: list[Image] = []
    disk.plan.watch = lambda call, path: images.append(disk.image())
    offsets.set(1, 4)
    offsets.save()
    disk.plan.watch = None
    images.append(disk.image())
    seen = []
    for number, image in enumerate(images):
        crashed = SimulatedDisk.after(image, survival, Random(number))
        found = DelayOffsets(make_context(root, files=crashed))
        found.load()
        seen.append((found.get(1), found.get(3)))
    assert set(seen[:-1]) <= {(3, 1), (4, 1)}
    assert seen[0] == (3, 1)
    assert seen[-1] == (4, 1)
