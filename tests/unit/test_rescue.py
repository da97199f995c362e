"""The rescue reads with plain Python what the kernel reads, and needs no kernel."""

import io
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Message, _kernel, rescue
from penstock.format.columns import ROW
from penstock.rescue import Found, Gap

PACKAGE = Path(penstock.__file__).parent


@pytest.fixture
def directory(open_small: OpenStore) -> Path:
    with open_small() as store:
        for number in range(150):
            store.put(
                "orders",
                b"%d" % number * (number % 90),
                queue=0,
                tag="created",
                keys=[f"k{number}"],
            )
        # Only a space separates keys; other blanks are parts of them.
        keys = ["a\tb", "\u5317\u3000\u4eac", "\x1f", "\n"]
        message = Message("l" * 128, bytes(900), keys=keys, properties={"a": "ü"})
        store.put_many([message] * 60)
    return store.path


def rows(window: bytes, base: int) -> list[tuple[int, int]]:
    """Return what the kernel takes for valid records from the start of a window on."""
    found = np.frombuffer(_kernel.scan(window, base, _kernel.CRC, b"")[0], ROW)
    return list(zip((found["position"] + base).tolist(), found["size"].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_it_takes_for_records_what_the_kernel_takes(seed: int, directory: Path) -> None:
    chance = random.Random(seed)
    for path in rescue.segments(directory):
        data, base = bytearray(path.read_bytes()), int(path.name)
        for _ in range(seed):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        at = base
        for piece in rescue.walk(bytes(data), base):
            # Nothing is left out, nothing taken twice.
            if isinstance(piece, Gap):
                assert piece.start == at
                assert rows(bytes(data[at - base :]), at) == []
                at = piece.stop
                continue
            assert (piece.fields.log_offset, piece.fields.size) == rows(
                bytes(data[at - base :]), at
            )[0]
            at += piece.fields.size
        assert at == base + len(data)


def test_every_message_comes_out_as_a_line_of_json(directory: Path) -> None:
    out = io.StringIO()
    assert rescue.main([str(directory)], out) == 0
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    with penstock.open(directory, read_only=True) as store:
        for line in lines:
            message = store.at(line["log_offset"])
            assert (line["topic"], line["queue"], line["queue_offset"]) == (message.topic, message.queue, message.queue_offset)  # fmt: skip
            assert (line["tag"], tuple(line["keys"]), line["properties"]) == (message.tag, message.keys, message.properties)  # fmt: skip
            assert line["has_own_crc"]
    assert len(lines) == 210
    out = io.StringIO()
    assert rescue.main([str(directory), "--topic", "orders"], out) == 0
    assert len(out.getvalue().splitlines()) == 150


def test_a_corrupt_record_is_named_and_the_others_come_out(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rescue.segments(directory)[0]
    found = [piece for piece in rescue.walk(path.read_bytes(), 0) if isinstance(piece, Found)]
    hit = found[100].fields
    data = bytearray(path.read_bytes())
    data[hit.log_offset + 90] ^= 1
    path.write_bytes(data)
    assert rescue.main([str(directory), "--count"]) == 1
    said = capsys.readouterr().err
    assert (
        f"log offsets {hit.log_offset} to {hit.log_offset + hit.size} are not a valid record"
        in said
    )
    assert "209 messages" in said


def test_what_is_gone_is_named(open_small: OpenStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Zeros before a record counted as not written yet, and nobody missed a segment."""
    with open_small() as store:
        store.put_many([Message("t", bytes(1000))] * 150)
    directory = store.path
    first, second, *others = rescue.segments(directory)
    data = bytearray(first.read_bytes())
    _, one, two, *_ = (p for p in rescue.walk(bytes(data), 0) if isinstance(p, Found))
    start, stop = one.fields.log_offset, two.fields.log_offset
    data[start:stop] = bytes(stop - start)
    first.write_bytes(data)
    (first.parent / "²").write_bytes(b"")
    (first.parent / f"{1 << 40:020d}").mkdir()
    second.unlink()
    assert rescue.main([str(directory), "--count"]) == 1
    said = capsys.readouterr().err
    assert f"log offsets {start} to {stop} are not a valid record" in said
    assert f"log offsets {int(second.name)} to {int(others[0].name)} are missing" in said
    assert "2 corrupt ranges" in said


def test_a_folder_that_is_no_store_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        rescue.main([str(tmp_path)])
    assert "is not a message store" in capsys.readouterr().err


@pytest.mark.slow
def test_it_runs_where_no_kernel_loads(directory: Path, tmp_path: Path) -> None:
    there = tmp_path / "code"
    shutil.copytree(
        PACKAGE, there / "penstock", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    environment = {**os.environ, "PYTHONPATH": str(there)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )  # fmt: skip

    assert "the compiled kernel" in run("-c", "import penstock").stderr
    done = run("-m", "penstock.rescue", str(directory))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 210
