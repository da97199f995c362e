"""Which tests run which lines, Python's and the kernel's: one run of each file of tests, kept in `build/mutants`.

Notes are kept by the digest of all sources that mutants change, the kernel and what takes the notes; and of the file
of tests. So a new or changed file of tests costs one run of that file; a changed source costs all of them.
"""

import contextlib
import hashlib
import json
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tests.mutants import kernel_build, noting, tracing
from tests.mutants.areas import ROOT, TESTED_BY, files_by_area, is_kernel
from tests.mutants.mutant import Mutant
from tests.mutants.scratch import Scratch

KEPT = ROOT / "build" / "mutants"
# The bytes of the kernel's object that probes may be in, and how long one file of tests may take with notes taken.
_OBJECT_BYTES, _FILE_SECONDS = 8 << 20, 420
# How far above a line of the kernel its block may begin.
_BLOCK_LINES = 60


class Test(NamedTuple):
    """A test by its node id, and how long it took."""

    name: str
    seconds: float


class LineMap:
    """Tests, and for each of them the lines that it runs."""

    def __init__(
        self, places: dict[str, int], tests: list[Test], runs: npt.NDArray[np.bool_]
    ) -> None:
        """`places` has the line 0 of each file, as a column of `runs`, whose rows are the tests."""
        self._places, self.tests, self._runs = places, tests, runs

    def of_mutant(self, mutant: Mutant) -> list[Test]:
        """Return the tests that run a mutant's statement; those that run any of its file for what runs at import."""
        if not mutant.is_in_function:
            return self._of_file(mutant.path)
        place = self._places[mutant.path]
        first, last = mutant.lines
        if is_kernel(mutant.path):
            # A block is noted by its first line only.
            ran = np.flatnonzero(self._runs[:, place : place + last + 1].any(axis=0))
            above = ran[ran >= first - _BLOCK_LINES]
            if not len(above):
                return []
            first = last = int(above[-1])
        return self._chosen(slice(place + first, place + last + 1))

    def _of_file(self, path: str) -> list[Test]:
        following = [place for place in self._places.values() if place > self._places[path]]
        return self._chosen(slice(self._places[path], min(following, default=None)))

    def _chosen(self, columns: slice) -> list[Test]:
        rows = np.flatnonzero(self._runs[:, columns].any(axis=1))
        return [self.tests[row] for row in rows]


def line_places(root: Path) -> tuple[dict[str, int], int]:
    """Return the place of each file's line 0 among the bytes of lines, and how many there are."""
    places, end = {}, 0
    for path in (path for paths in files_by_area(root).values() for path in paths):
        places[path] = end
        end += (root / path).read_bytes().count(b"\n") + 2
    return places, end


def files_of_tests(folders: Iterable[str] = TESTED_BY) -> list[str]:
    """Return the files of tests in some folders of `tests`, as paths below the root, folder by folder."""
    places = (ROOT / "tests" / name for name in folders)
    found = (path for place in places for path in sorted(place.rglob("test_*.py")))
    return [path.relative_to(ROOT).as_posix() for path in found]


def digest_of_sources(root: Path = ROOT) -> str:
    """Return the digest of all that notes depend on, but for the tests."""
    digest = hashlib.sha256()
    mine = [path.relative_to(root).as_posix() for path in Path(__file__).parent.glob("*.c")]
    paths = [*(p for found in files_by_area(root).values() for p in found), *mine, "hatch_build.py"]
    for path in [*paths, *(f"tests/mutants/{name}.py" for name in ("noting", "tracing"))]:
        digest.update(path.encode() + b"\0" + hashlib.sha256((root / path).read_bytes()).digest())
    return digest.hexdigest()


def make_line_map(folder: Path, paths: list[str], jobs: int, say: Callable[[str], None]) -> LineMap:
    """Return the map of some files of tests; runs those of which no notes are kept, `jobs` at a time.

    Args:
        folder: for temporary files.
        paths: the files of tests.
        jobs: how many files run at a time, each in a copy of the checkout.
        say: called with a line for each file that was run.
    """
    place = KEPT / digest_of_sources()[:16]
    place.mkdir(parents=True, exist_ok=True)
    kept = {path: place / f"{_digest_of_file(path)}.json" for path in paths}
    missing = queue.SimpleQueue[str]()
    for path in (path for path in paths if not kept[path].is_file()):
        missing.put(path)

    def run_missing(number: int) -> None:
        noter = Noter(folder / f"map{number}", say)
        with contextlib.suppress(queue.Empty):
            while True:
                path = missing.get_nowait()
                noter.note(path, kept[path])

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(run_missing, number) for number in range(jobs)]:
            done.result()
    noted = [test for path in paths for test in json.loads(kept[path].read_text())]
    places, end = line_places(ROOT)
    runs = np.zeros((len(noted), end), np.bool_)
    for row, test in enumerate(noted):
        runs[row, test["lines"]] = True
    return LineMap(places, [Test(test["test"], test["seconds"]) for test in noted], runs)


def _digest_of_file(path: str) -> str:
    return hashlib.sha256(path.encode() + (ROOT / path).read_bytes()).hexdigest()[:16]


class Noter:
    """Takes the notes of one file of tests at a time, in its own copy of the checkout."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """Keep temporary files in `folder`; `say` is called with a line for each file of tests."""
        self._folder, self._say = folder, say
        self._places, self._end = line_places(ROOT)
        self._scratch: Scratch | None = None

    def note(self, path: str, kept: Path) -> None:
        """Run one file of tests, and keep what ran."""
        scratch = self._scratch_of_mine()
        notes = self._folder / "notes.ndjson"
        notes.unlink(missing_ok=True)
        code, told = scratch.pytest(
            ["-p", "tests.mutants.noting", "--tb=no", path], _FILE_SECONDS,
            first_on_path=str(scratch.root / "tests" / "mutants" / "site"),
            **{
                tracing.LINES: str(self._folder / "lines"), tracing.BLOCKS: str(self._folder / "blocks"),
                tracing.TABLE: str(self._folder / "table.json"), noting.NOTES: str(notes),
            },
        )  # fmt: skip
        found = list(self._read(notes))
        self._say(
            f"{path}: {len(found)} tests pass, {told.strip().rpartition(chr(10))[2]} ({code})"
        )
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(kept)

    def _read(self, notes: Path) -> Iterator[dict[str, Any]]:
        """Yield what was noted, with the kernel's blocks as lines."""
        noted = (
            [json.loads(line) for line in notes.read_text().splitlines()] if notes.is_file() else []
        )
        blocks = sorted({block for test in noted for block in test["blocks"]})
        assert self._scratch is not None
        lines = kernel_build.lines_of(self._scratch.root, self._scratch.object, blocks)
        bases = {Path(path).name: base for path, base in self._places.items() if is_kernel(path)}
        columns = {
            block: bases[name] + line for block, (name, line) in lines.items() if name in bases
        }
        for test in noted:
            ran = {columns[block] for block in test.pop("blocks") if block in columns}
            yield {**test, "lines": sorted(ran.union(test["lines"]))}

    def _scratch_of_mine(self) -> Scratch:
        if self._scratch is None:
            self._folder.mkdir()
            self._scratch = scratch = Scratch(self._folder / "map")
            scratch.build(with_probes=True)
            for name, size in (("lines", self._end), ("blocks", _OBJECT_BYTES)):
                (self._folder / name).write_bytes(bytes(size))
            table = {str(scratch.root / path): place for path, place in self._places.items()}
            (self._folder / "table.json").write_text(json.dumps(table))
        return self._scratch
