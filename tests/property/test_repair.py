"""Random damage anywhere in a store: a repair ends sound, or leaves damage of the log and nothing else."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.lanes import examples
from tests.unit.integrity.test_verification import findings, make, patch
from tests.unit.repairs.test_repair import Bodies, bodies, repair

from penstock.errors import PenstockError

# Which file, where in it, what is written over it.
SPOT = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.binary(min_size=1, max_size=40), st.just(bytes(4096)), st.just(b"\xff" * 600)),
)
# What says which sizes the files have; without it nothing can be told from a spoilt one.
SPARED = ("geometry.json", "lock", "holder")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("property") / "s")


@pytest.fixture(scope="module")
def sound(made: Path) -> Bodies:
    return bodies(made)


def spoil(path: Path, spots: list[tuple[float, float, bytes]]) -> None:
    for which, where, data in spots:
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.name not in SPARED)
        file = files[int(which * len(files))]
        size = file.stat().st_size
        position = int(where * size)
        patch(file, position, data[: size - position])


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@example(spots=[(0.0625, 0.81640625, b"\x00")])
@given(spots=st.lists(SPOT, min_size=1, max_size=4))
def test_whatever_is_spoilt_a_repair_ends_sound_or_leaves_the_log_as_it_was(
    made: Path, sound: Bodies, spots: list[tuple[float, float, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        shutil.copytree(made, path, copy_function=shutil.copy2)
        spoil(path, spots)
        readable = readable_now(path)
        repair(path, apply=True)
        parts = {f.part for f in findings(path, deep=True)}
        assert "digest" in parts or parts <= {"log"}
        left = bodies(path)
        assert readable.items() <= left.items(), "what could be read still can"
        assert "digest" in parts or left.items() <= sound.items()
        assert repair(path, apply=True).steps == ()
        repair(path, apply=True, cut=True, accept=True)
        assert findings(path, deep=True) == []


def readable_now(path: Path) -> Bodies:
    try:
        return bodies(path)
    except (PenstockError, OSError):
        return {}
