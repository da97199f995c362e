"""A file system that behaves like the real one, until it is set to fail or to simulate the death of the process."""

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs

from penstock.files import File, Files
from penstock.files.lock_file import Lock
from penstock.files.volume import Volume

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# The calls that a plan can fail; those before "create" change nothing.
CALLS = (
    "open", "pread", "map",
    "create", "pwrite", "sync", "allocate", "resize", "erase", "punch", "rename", "remove", "make_folder",
    "sync_folder", "sync_volume",
)  # fmt: skip
_READING = CALLS[:3]


class KilledError(BaseException):
    """Simulates the death of the process; not a subclass of `Exception`, so that no handler catches it."""


@attrs.define
class Rule:
    """A kind of call that fails with an errno after `after` calls, `times` times, or always if None."""

    call: str
    number: int
    path: str
    after: int
    times: int | None

    def is_due(self) -> bool:
        """Count a matching call, and return whether it fails."""
        if self.after > 0:
            self.after -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


class FaultPlan:
    """Determines which calls fail, and how.

    Before each call that changes something, `before` is called if set, then `watch` with the call's name and path.
    """

    def __init__(self) -> None:
        self.before: Callable[[], None] | None = None
        self.watch: Callable[[str, Path], None] | None = None
        self.counts: dict[str, int] = {}
        self.total = 0
        self.rules: list[Rule] = []
        self._die_at: int | None = None
        self.is_dead = False
        self.died_in = ""

    def fail(
        self,
        call: str,
        number: int = errno.EIO,
        *,
        after: int = 0,
        path: str = "",
        times: int | None = None,
    ) -> None:
        """Let `call` fail with an errno from now on, after `after` more calls of this kind.

        Applies only to files whose path contains `path`, and fails only `times` times if that is given.
        """
        self.rules.append(Rule(call, number, path, after, times))

    def die_at(self, count: int) -> None:
        """Simulate the death of the process at its `count`-th call from now; that call and all later ones raise."""
        self._die_at = self.total + count

    def heal(self) -> None:
        """Remove all rules: all calls work again."""
        self.rules.clear()
        self._die_at, self.is_dead = None, False

    def check(self, call: str, path: Path) -> None:
        """Count a call; raises if the plan lets it fail."""
        if self.is_dead:
            raise KilledError
        self.counts[call] = self.counts.get(call, 0) + 1
        if call not in _READING:
            self.total += 1
            if self.before is not None:
                self.before()
            if self.watch is not None:
                self.watch(call, path)
        if self._die_at is not None and self.total >= self._die_at:
            self.is_dead, self.died_in = True, f"{call} {path.name}"
            raise KilledError
        for rule in self.rules:
            if rule.call == call and rule.path in str(path) and rule.is_due():
                raise OSError(rule.number, os.strerror(rule.number), str(path))


def _checked(
    method: Callable[Concatenate[Any, Arguments], Result], name: str = ""
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Return a method of a file that fails where the plan has a rule for `name`, by default its own."""

    @functools.wraps(method)
    def call(self: "FaultyFile", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        self._plan.check(name or method.__name__, self.path)
        return method(self, *args, **kwargs)

    return call


class FaultyFile(File):
    """A file whose calls may fail."""

    def __init__(self, path: Path, descriptor: int, plan: FaultPlan) -> None:
        super().__init__(path, descriptor)
        self._plan = plan

    pread = _checked(File.pread)
    pwrite = _checked(File.pwrite)
    sync = _checked(File.sync)
    sync_all = _checked(File.sync_all, "sync")
    allocate = _checked(File.allocate)
    allocate_range = _checked(File.allocate_range, "allocate")
    resize = _checked(File.resize)
    zero_range = _checked(File.zero_range, "erase")
    punch = _checked(File.punch)


class FaultyVolume(Volume):
    """A file system whose sync as a whole may fail."""

    def __init__(self, volume: Volume, plan: FaultPlan) -> None:
        super().__init__(volume.path, volume.detach())
        self._plan = plan

    def sync(self) -> None:
        self._plan.check("sync_volume", self.path)
        super().sync()


class FaultyFiles(Files):
    """Files whose calls fail, or kill the process, according to `plan`; the calls are those in `CALLS`."""

    def __init__(self) -> None:
        self.plan = FaultPlan()
        self._locks: list[Lock] = []

    def open(self, path: Path, *, writable: bool = False) -> File:
        self.plan.check("open", path)
        return self._wrap(super().open(path, writable=writable))

    def create(self, path: Path) -> File:
        self.plan.check("create", path)
        return self._wrap(super().create(path))

    def _wrap(self, file: File) -> File:
        return FaultyFile(file.path, file.detach(), self.plan)

    def rename(self, source: Path, target: Path) -> None:
        self.plan.check("rename", source)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.plan.check("remove", path)
        super().remove(path)

    def make_folder(self, path: Path) -> list[Path]:
        if not self.is_folder(path):
            self.plan.check("make_folder", path)
        return super().make_folder(path)

    def sync_folder(self, path: Path) -> None:
        self.plan.check("sync_folder", path)
        super().sync_folder(path)

    def volume(self, folder: Path) -> Volume | None:
        self.plan.check("open", folder)
        volume = super().volume(folder)
        return None if volume is None else FaultyVolume(volume, self.plan)

    def lock(self, path: Path) -> Lock | None:
        """See `Files`; records the lock for `abandon`."""
        lock = super().lock(path)
        if lock is not None:
            self._locks.append(lock)
        return lock

    def abandon(self) -> None:
        """Release all locks, as the system does for a process that died."""
        while self._locks:
            self._locks.pop().release()
