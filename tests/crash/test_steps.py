"""Killed between any two instructions that lay a record into the log's memory: there is none, or a whole one."""

import itertools
import platform
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hatch_build
import pytest
from tests.conftest import OpenStore
from tests.faults.children import ROOT

from penstock.staged import encoding_for
from penstock.testing.kit import copy_files

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="steps by x86-64's trap flag"
)
SHAPES = {
    "plain": (1, 40, 0), "whole crc": (1, 40, 1), "long body": (1, 3000, 1), "second version": (200, 40, 1),
}  # fmt: skip
# Opening takes longer than a step: of many states in a row that differ by some bytes of the body one is opened.
OPENED = 40


@pytest.fixture(scope="session")
def stepper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = hatch_build.compiler_and_version(ROOT, "")[0]
    path = tmp_path_factory.mktemp("steps") / "steps"
    source = Path(__file__).with_name("steps.c")
    headers = ROOT / "core" / "penstock" / "_kernel"
    # No red zone: what sets the flag pushes onto the stack.
    done = subprocess.run(
        [*compiler, "-O2", "-fwrapv", "-fno-strict-aliasing", "-mno-red-zone", "-I", headers, "-o", path, source],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path


def states(stepper: Path, *arguments: object) -> Iterator[bytes]:
    done = subprocess.run(
        [stepper, *map(str, arguments)], check=True, capture_output=True, timeout=120
    )
    at = 0
    while at < len(done.stdout):
        _, size = struct.unpack_from("<qq", done.stdout, at)
        yield done.stdout[at + 16 : at + 16 + size]
        at += 16 + size


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["write", "copy"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_record_counts_only_when_it_is_whole(
    shape: str, way: str, stepper: Path, open_small: OpenStore, tmp_path: Path
) -> None:
    topic_size, body_size, has_crc = SHAPES[shape]
    topic = "t" * topic_size
    checksum = "crc32+record" if has_crc else "crc32"
    given = {"log.checksum": checksum, "log.long_topics": True}
    store = open_small(**given)
    first = store.put(topic, b"first", queue=0)
    store.topics()
    host = encoding_for(tmp_path / "store", environ={}).store_host.hex()
    copy_files(tmp_path / "store", tmp_path / "killed")
    store.close()
    end = first.log_offset + first.size
    found = list(
        states(stepper, way, end, 1, first.store_time_ms, topic_size, body_size, has_crc, host)
    )
    assert len(found) > 4
    whole = found[-1]
    for state in found[:-1]:
        # RocketMQ's log ends where the magic is none (spec section 6), whatever size stands before it.
        assert state[4:8] == bytes(4)
        if any(state[8:28]) or any(state[36:]):
            assert (state[:4], state[28:36]) == (whole[:4], whole[28:36]), (
                "size and own log offset come first"
            )
    few = found[:: max(len(found) // OPENED, 1)]
    for number, state in enumerate(itertools.chain(few, [whole])):
        copy = tmp_path / f"copy{number}"
        copy_files(tmp_path / "killed", copy)
        with (copy / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(end)
            file.write(state)
        with open_small(path=copy, **given) as again:
            bodies = [message.body for message in again.scan(topic)]
            assert bodies == [b"first"] + [b"b" * body_size] * (state == whole)
            assert again.put(topic, b"next", queue=0).queue_offset == len(bodies)
            assert not list(again.verify())
