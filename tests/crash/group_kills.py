"""Starts the processes of consumer groups, kills, stops and forks them, and starts others in their place.

Run as a program of its own, with one thread: it forks the processes, which saves each of them the imports.
"""

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.crash.group_members import GROUPS, HANDLED, STYLES, run_process
from tests.crash.group_trace import Event, Trace, TraceReader

# Members in processes of their own, for each group; the writer has one more of each.
READERS = 2
# No step of a run takes this long on a machine that works.
LIMIT_S = 120
# Longer than queues may take to move: whether they do in time is for the judge to say.
MOVE_LIMIT_S = 8
_PAUSE_S = 0.02
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


class Runner:
    """The processes of a run, and what is done to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        (folder / "traces").mkdir()
        self._folder = folder
        self._seed = seed
        self.chance = random.Random(seed)
        self._reader = TraceReader(folder / "traces")
        self._trace = Trace(folder / "traces", "runner")
        self._started = 0
        self.pids: dict[str, int] = {}
        self.what: dict[str, list[str]] = {}
        self.joined: set[str] = set()
        self.stopped: dict[str, float] = {}
        self.children: dict[str, int] = {}
        self.seen: set[str] = set()
        # Who has a queue, as far as the traces say.
        self.owners: dict[tuple[str, str, int], str] = {}
        self.later: list[tuple[float, list[str]]] = []

    # --- processes

    def start(self, what: list[str]) -> str:
        """Start a process; returns its name."""
        self._started += 1
        name = f"{what[0]}-{self._started}"
        # They wait until the process has its handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self.note("started", name, " ".join(what))
        pid = os.fork()
        if pid == 0:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            status = 1
            try:
                status = run_process(self._folder, name, what, f"{self._seed} {name}")
            finally:
                sys.stderr.flush()
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        self.pids[name], self.what[name] = pid, what
        return name

    def note(self, kind: str, process: str, note: str = "") -> None:
        """Trace something that is done to a process."""
        self._trace.add(kind, process=process, note=note)

    def kill(self, name: str) -> None:
        """Kill a process."""
        self.note("killed", name)
        pid = self.pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.joined.discard(name)
        self.stopped.pop(name, None)

    def stop(self, name: str, seconds: float) -> None:
        """Stop a process, for a time."""
        self.note("stopped", name)
        os.kill(self.pids[name], signal.SIGSTOP)
        self.stopped[name] = time.monotonic() + seconds

    def end(self, name: str) -> None:
        """Make a process end by itself."""
        os.kill(self.pids[name], signal.SIGTERM)
        pid = self.pids.pop(name)
        self.joined.discard(name)
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.note("ended", name, str(os.waitstatus_to_exitcode(status)))
                return
            self.look()
        self.note("ended", name, "hangs")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    # --- what goes on

    def look(self) -> list[Event]:
        """Wait for a moment; return the events that are new, after continuing and starting what is due."""
        time.sleep(_PAUSE_S)
        now_s = time.monotonic()
        for name in [name for name, until_s in self.stopped.items() if until_s <= now_s]:
            del self.stopped[name]
            os.kill(self.pids[name], signal.SIGCONT)
            self.note("continued", name)
        for due in [each for each in self.later if each[0] <= now_s]:
            self.later.remove(due)
            self.start(due[1])
        self._reap()
        events = self._reader.new()
        for event in events:
            self._learn(event)
        return events

    def _learn(self, event: Event) -> None:
        if event.kind == "joined":
            self.joined.add(event.process)
        elif event.kind == "taken":
            self.owners[event.place] = event.process
        elif event.kind == "forked":
            child, _, pid = event.note.partition(" ")
            self.children[child] = int(pid)
        elif event.kind == "hung":
            self.children.pop(event.process, None)
        self.seen.add(event.kind)

    def _reap(self) -> None:
        """Collect processes that ended though nobody told them to, and forked children whose parents are dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for name in [name for name, each in self.pids.items() if each == pid]:
                self.note("ended", name, f"{os.waitstatus_to_exitcode(status)}, by itself")
                del self.pids[name]
                self.joined.discard(name)
                self.later.append((0, self.what[name]))
            self.children = {n: each for n, each in self.children.items() if each != pid}

    def wait_until(self, is_done: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        """Look until something is true; returns whether it was in time."""
        until_s = time.monotonic() + limit_s
        while not is_done():
            if time.monotonic() > until_s:
                return False
            self.look()
        return True

    # --- what is done

    def victim(self, *, writer: bool) -> str | None:
        """Return a process that has joined and is not stopped; None if there is none now."""
        found = sorted(
            name
            for name in self.joined
            if name in self.pids
            and name.startswith("writer") == writer
            and name not in self.stopped
        )
        return self.chance.choice(found) if found else None

    def replace(self, name: str, *, delay_s: float) -> None:
        """Start a process like another one, later."""
        self.later.append((time.monotonic() + delay_s, self._varied(self.what[name])))

    def _varied(self, what: list[str]) -> list[str]:
        return [*what[:2], self.chance.choice(STYLES)] if what[0] == "reader" else what

    def disturb(self) -> int:
        """Do one thing to one process; returns how many kills, stops and forks that were."""
        chance = self.chance
        name = self.victim(writer=chance.random() < 0.3)
        if name is None:
            self.look()
            return 0
        draw = chance.random()
        if draw < 0.08 and name.startswith("reader"):
            self.end(name)
            self.replace(name, delay_s=chance.uniform(0, 0.3))
            return 0
        if draw < 0.25:
            self.stop(name, chance.choice([0.05, 0.3, 1.0, 2.5]))
            if chance.random() < 0.3:
                self._pass(0.1)
                self._kill(name)
                return 2
            return 1
        if draw < 0.45:
            known = len(self.children)
            os.kill(self.pids[name], signal.SIGUSR1)
            self.wait_until(lambda: len(self.children) != known, 2)
            self._pass(chance.choice([0, 0.05, 0.5]))
            if name in self.pids:
                self._kill(name)
            return 2
        self._kill(name)
        return 1

    def _pass(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= until_s)

    def _kill(self, name: str) -> None:
        """Kill a process; in half of all cases wait until its queues have other owners."""
        self.kill(name)
        self.look()
        queues = [place for place, owner in self.owners.items() if owner == name]
        self.replace(name, delay_s=self.chance.choice([0, 0.3, 1.5]))
        if self.chance.random() < 0.5:
            self.wait_until(lambda: all(self.owners[each] != name for each in queues), MOVE_LIMIT_S)

    def kill_children(self) -> None:
        """Kill the forked children that are left."""
        for pid in self.children.values():
            # It does not end by itself before, and nobody but this process would collect it, so it still has its number.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.children.clear()


def run(folder: Path, kills: int, seed: int) -> str:
    """Let groups consume while processes are killed; returns what went wrong with the run itself, or ""."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    runner = Runner(folder, seed)
    runner.start(["writer"])
    if not runner.wait_until(lambda: "put" in runner.seen):
        return "the writer does not begin"
    for group in GROUPS:
        for _ in range(READERS):
            runner.start(["reader", group, runner.chance.choice(STYLES)])
    if not runner.wait_until(lambda: len(runner.joined) == 1 + READERS * len(GROUPS)):
        return "the members do not join"
    done = 0
    idle_s = time.monotonic() + LIMIT_S
    while done < kills:
        count = runner.disturb()
        done += count
        if count:
            idle_s = time.monotonic() + LIMIT_S
        if time.monotonic() > idle_s:
            return f"after {done} kills nobody has joined any more"
    (folder / "stop").touch()
    problem = ""
    if not runner.wait_until(lambda: "drained" in runner.seen):
        problem = "what was put is not consumed; the last event `left` of the writer says what"
    runner.wait_until(lambda: not runner.stopped and not runner.later)
    for name in sorted(runner.pids, key=lambda name: name.startswith("writer")):
        runner.end(name)
    runner.kill_children()
    return problem


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
