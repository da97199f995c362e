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

from tests.night.kills.consumer_processes import GROUPS, HANDLED, STYLES, run_process
from tests.night.kills.consumer_trace import Event, Trace, TraceReader

# Members in processes of their own, for each group; the writer has one more of each.
READERS = 2
# No step of a run takes this long on a machine that works.
LIMIT_S = 120
# How long processes are stopped: some for longer than `ack_wait`.
STOPS_S = (0.05, 0.3, 1.0, 2.5)
# What is done to which process, in one order after the other.
DECK = (
    *[("kill", "reader")] * 3, *[("kill", "writer")] * 2, *[("fork", "reader")] * 2, ("fork", "writer"),
    ("stop", "reader"), ("stop", "writer"), ("end", "reader"),
)  # fmt: skip
# Longer than queues may take to move: whether they do in time is for the judge to say.
MOVE_LIMIT_S = 8
_PAUSE_S = 0.02
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


class RunError(Exception):
    """The run cannot go on."""


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
        self._ending: set[str] = set()
        self._deck: list[tuple[str, str]] = []
        # How many kills, stops and forks there were.
        self.done = 0
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
        self.note("killed", name, str(time.time_ns() // 1_000_000))
        pid = self.pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.joined.discard(name)
        self.stopped.pop(name, None)
        self.done += 1

    def stop(self, name: str, seconds: float) -> None:
        """Stop a process, for a time."""
        self.note("stopped", name)
        os.kill(self.pids[name], signal.SIGSTOP)
        self.stopped[name] = time.monotonic() + seconds
        self.done += 1

    def end(self, name: str) -> None:
        """Make a process end by itself."""
        self._ending.add(name)
        self.joined.discard(name)
        os.kill(self.pids[name], signal.SIGTERM)
        if not self.wait_until(lambda: name not in self.pids):
            self.note("ended", name, "hangs")
            raise RunError(f"process {name} does not end")

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
        """Note which processes have stopped or killed themselves; collect forked children whose parents are dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if not pid:
                return
            names = [name for name, each in self.pids.items() if each == pid]
            if os.WIFSTOPPED(status):
                for name in names:
                    self._has_stopped(name)
                continue
            self.children = {n: each for n, each in self.children.items() if each != pid}
            for name in names:
                self._has_ended(name, os.waitstatus_to_exitcode(status))

    def _has_stopped(self, name: str) -> None:
        if name not in self.stopped:
            # It has stopped itself.
            self.stopped[name] = time.monotonic() + self.chance.choice(STOPS_S)
            self.done += 1

    def _has_ended(self, name: str, status: int) -> None:
        del self.pids[name]
        self.joined.discard(name)
        self.stopped.pop(name, None)
        if status == -signal.SIGKILL:
            # It has killed itself, and has said so in its trace.
            self.done += 1
        elif name in self._ending:
            self.note("ended", name, str(status))
        else:
            self.note("ended", name, f"{status}, by itself")
            raise RunError(f"process {name} ended by itself, with status {status}")
        if name not in self._ending:
            self.replace(name, delay_s=self.chance.choice([0, 0.3, 1.5]))

    def wait_for(self, what: str, is_done: Callable[[], object]) -> None:
        """Look until something is true; raises `RunError` if that takes too long."""
        if not self.wait_until(is_done):
            raise RunError(f"{what}: not within {LIMIT_S} s")

    def wait_until(self, is_done: Callable[[], object], limit_s: float = LIMIT_S) -> bool:
        """Look until something is true; returns whether it was in time."""
        until_s = time.monotonic() + limit_s
        while not is_done():
            if time.monotonic() > until_s:
                return False
            self.look()
        return True

    # --- what is done

    def victims(self, *, writer: bool) -> list[str]:
        """Return the processes that have joined and are not stopped."""
        return sorted(
            name
            for name in self.joined
            if name in self.pids
            and name.startswith("writer") == writer
            and name not in self.stopped
        )

    def replace(self, name: str, *, delay_s: float) -> None:
        """Start a process like another one, later."""
        self.later.append((time.monotonic() + delay_s, self._varied(self.what[name])))

    def _varied(self, what: list[str]) -> list[str]:
        return [*what[:2], self.chance.choice(STYLES)] if what[0] == "reader" else what

    def disturb(self) -> None:
        """Do one thing to one process."""
        chance = self.chance
        if not self._deck:
            self._deck = [*DECK]
            chance.shuffle(self._deck)
        what, kind = self._deck.pop()
        self._pass(chance.choice([0, 0, 0.2, 0.5, 1.0]))
        is_writer = kind == "writer"
        self.wait_for(f"a {kind} joins", lambda: self.victims(writer=is_writer))
        name = chance.choice(self.victims(writer=is_writer))
        if what == "end":
            self.end(name)
            self.replace(name, delay_s=chance.uniform(0, 0.3))
        elif what == "stop":
            self.stop(name, chance.choice(STOPS_S))
            if chance.random() < 0.3:
                self._pass(0.1)
                self._kill(name)
        elif what == "fork":
            self.fork(name)
            self._pass(chance.choice([0, 0.05, 0.5]))
            self._kill(name)
        else:
            self._kill(name)

    def fork(self, name: str) -> None:
        """Make a process fork."""
        known = len(self.children)
        os.kill(self.pids[name], signal.SIGUSR1)
        self.wait_until(lambda: len(self.children) != known or name not in self.pids, 2)
        self.done += len(self.children) != known

    def _pass(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= until_s)

    def _kill(self, name: str) -> None:
        """Kill a process, unless it was faster; in half of all cases wait until its queues have other owners."""
        if name not in self.pids:
            return
        self.kill(name)
        self.look()
        queues = [place for place, owner in self.owners.items() if owner == name]
        self.replace(name, delay_s=self.chance.choice([0, 0.3, 1.5]))
        if self.chance.random() < 0.5:
            self.wait_until(lambda: all(self.owners[each] != name for each in queues), MOVE_LIMIT_S)

    def kill_all(self) -> None:
        """Kill what is left: after a failure the processes, and then the forked children, which are this process's by now."""
        for name in list(self.pids):
            self.kill(name)
        while children := _children():
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Return the child processes of this one; the parent of one may have died before it said that it forked."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        # After the name in parentheses: the state, and the parent.
        if int(text.rpartition(")")[2].split()[1]) == os.getpid():
            found.append(int(path.parent.name))
    return found


def run(folder: Path, kills: int, seed: int) -> None:
    """Let groups consume while processes are killed; raises `RunError` if that cannot go on."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    runner = Runner(folder, seed)
    try:
        runner.start(["writer"])
        runner.wait_for("the writer begins to put", lambda: "put" in runner.seen)
        for group, rules in GROUPS.items():
            for _ in range(READERS):
                # The only style that seeks.
                style = "batches" if rules.moved else runner.chance.choice(STYLES)
                runner.start(["reader", group, style])
        count = 1 + READERS * len(GROUPS)
        runner.wait_for("all members join", lambda: len(runner.joined) == count)
        while runner.done < kills:
            runner.disturb()
        (folder / "stop").touch()
        runner.wait_for("all is consumed (see the events `left`)", lambda: "drained" in runner.seen)
        runner.wait_for("all go on", lambda: not runner.stopped and not runner.later)
        for name in sorted(runner.pids, key=lambda name: name.startswith("writer")):
            runner.end(name)
    finally:
        runner.kill_all()


if __name__ == "__main__":
    try:
        run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except RunError as error:
        sys.exit(str(error))
