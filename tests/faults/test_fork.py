"""A process forked with a store open: the child refuses, changes nothing, and takes nothing from the parent."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.faults.children import run, say

STORY = """
import gc, os, signal, sys, time
import penstock
from penstock.errors import ForkedStoreError, StoreLockedError

path = sys.argv[1]
settings = {"geometry.segment_bytes": 65536, "geometry.index_slots": 100, "geometry.index_entries": 400}
"""

CHILD_IS_REFUSED = """
for flush, write in (("sync", "file"), ("async", "mmap"), ("async", "transient-pool")):
    where = os.path.join(path, flush + write)
    store = penstock.open(where, environ={}, flush=flush, write=write, **settings)
    for number in range(50):
        store.put("t", b"%d" % number, keys=["k"], queue=0)
    store.put("followed", b"x", queue=0)
    following = store.scan("followed", follow=True)
    next(following)
    before = store.stats()["log_end_offset"]
    child = os.fork()
    if child == 0:
        jobs = [
            lambda: store.put("t", b"x", queue=0), lambda: store.put_many([penstock.Message("t", b"x", queue=0)]),
            lambda: store.submit("t", b"x"), store.flush, store.retain, lambda: store.read("t", 0),
            lambda: store.discard_before(log_offset=1 << 40), store.topics, store.stats,
            lambda: store.find("k", "t"), lambda: store.commit_offset("g", "t", 0, offset=1),
            lambda: store.committed_offset("g", "t", 0), lambda: list(store.scan("t")),
            lambda: next(following),
        ]
        refused = 0
        for job in jobs:
            try:
                job()
            except ForkedStoreError as error:
                assert error.parent == os.getppid() and "child" in str(error)
                refused += 1
        store.close()
        del store
        gc.collect()
        # An exit as any other: exit handlers run, objects go.
        sys.exit(0 if refused == len(jobs) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.stats()["log_end_offset"] == before
    try:
        penstock.open(where, environ={})
    except StoreLockedError as error:
        assert f"process {os.getpid()}" in str(error)
    else:
        raise AssertionError("the child took the parent's lock away")
    assert store.put("t", b"after", queue=0).queue_offset == 50
    store.put("followed", b"y", queue=0)
    assert next(following).body == b"y"
    store.close()
    with penstock.open(where, environ={}) as store:
        assert store.recovery.state == "clean", store.recovery
        assert len(list(store.scan("t"))) == 51
        assert not list(store.verify())
print("fine")
"""


def test_a_child_of_a_fork_is_refused_everything_and_the_parent_goes_on(tmp_path: Path) -> None:
    done = run(STORY + CHILD_IS_REFUSED, tmp_path)
    assert done == ["fine"]


def test_a_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A fork shares the lock's descriptor; a child that outlived its parent once kept the store shut."""
    script = STORY + """
store = penstock.open(path, environ={}, **settings)
store.put("t", b"x", queue=0)
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
if sys.argv[2] == "close":
    store.close()
    penstock.open(path, environ={}).close()
    print("opened again", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""  # fmt: skip
    for how in ("close", "die"):
        lines = say(script, tmp_path / how, how)
        child = int(lines[0])
        try:
            again = [sys.executable, "-c", STORY + "penstock.open(path, environ={}).close()"]
            done = subprocess.run([*again, str(tmp_path / how)], capture_output=True, text=True, check=False)  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert lines[1:] == (["opened again"] if how == "close" else [])
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_may_open_the_store_for_reading_and_after_the_parent_for_writing(
    tmp_path: Path,
) -> None:
    done = run(STORY + textwrap.dedent("""
        store = penstock.open(path, environ={}, **settings)
        store.put("t", b"x", queue=0)
        store.stats()
        there, here = os.pipe()
        asked, answer = os.pipe()
        child = os.fork()
        if child == 0:
            with penstock.open(path, read_only=True) as reader:
                assert [m.body for m in reader.scan("t")] == [b"x"]
            try:
                penstock.open(path, environ={})
            except StoreLockedError:
                pass
            else:
                os._exit(1)
            os.write(answer, b"!")
            os.read(there, 1)
            with penstock.open(path, environ={}) as own:
                own.put("t", b"y", queue=0)
            os._exit(0)
        os.read(asked, 1)
        store.close()
        os.write(here, b"!")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with penstock.open(path, read_only=True) as reader:
            print([m.body for m in reader.scan("t")])
    """), tmp_path)  # fmt: skip
    assert done == ["[b'x', b'y']"]


def test_a_child_forked_while_a_thread_opens_a_lock_file_does_not_keep_the_lock(
    tmp_path: Path,
) -> None:
    """The thread had the descriptor and had not said so: the child shared it, and with it the lock that the parent then took."""
    done = run("""
import os, sys, threading
from pathlib import Path
from penstock.files import lock_file

path = Path(sys.argv[1]) / "lock"
is_open, go_on = threading.Event(), threading.Event()
real = lock_file._open

def slow(path, mode):
    descriptor = real(path, mode)
    is_open.set()
    go_on.wait()
    return descriptor

for take in (lock_file.take, lock_file.take_file):
    lock_file._open = slow
    taken = []
    thread = threading.Thread(target=lambda: taken.append(take(path, 0o600)))
    thread.start()
    is_open.wait()
    # Called before what `lock_file` has registered: now the fork has begun.
    os.register_at_fork(before=go_on.set)
    (read, write), (is_there, say) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say, b"x")
        os.read(read, 1)
        os._exit(0)
    os.read(is_there, 1)
    thread.join()
    assert lock_file.is_taken(path)
    # As at the death of the parent: its descriptors are closed, and nothing is unlocked.
    taken[0].leave()
    is_kept = lock_file.is_taken(path)
    os.write(write, b"x")
    os.waitpid(child, 0)
    assert not is_kept, take
    is_open.clear()
    go_on.clear()
    lock_file._open = real
print("fine")
""", tmp_path)  # fmt: skip
    assert done == ["fine"]


def test_a_child_keeps_no_lock_if_another_object_cannot_leave(tmp_path: Path) -> None:
    done = run("""
import os, sys
from pathlib import Path
from penstock.files import lock_file

class Stubborn:
    def leave(self):
        raise RuntimeError("as it was in the middle of a change")

stubborn = [Stubborn() for _ in range(20)]
locks = []
for number, one in enumerate(stubborn):
    lock_file.leave_in_child(one)
    locks.append(lock_file.take_file(Path(sys.argv[1]) / str(number), 0o600))
child = os.fork()
if child == 0:
    sys.stderr.flush()
    os._exit(any(lock._fds for lock in locks))
assert os.waitpid(child, 0)[1] == 0
print("fine")
""", tmp_path)  # fmt: skip
    assert done == ["fine"]


def test_a_child_of_a_fork_finishes_no_prepared_message_and_does_not_wait_for_ever(tmp_path: Path) -> None:  # fmt: skip
    """A thread of the parent may hold the lock of prepared messages at the fork: the child waited for it without an end."""
    run(STORY + """
import threading
store = penstock.open(path, environ={}, **settings)
first, second = (store.prepare("t", b"%d" % number, group="g") for number in range(2))
is_held, is_over = threading.Event(), threading.Event()

def hold():
    with store.lowlevel.extension("messaging").halves.guard:
        is_held.set()
        is_over.wait()

threading.Thread(target=hold).start()
is_held.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    refused = 0
    jobs = first.commit, first.rollback, first.__enter__, store.prepared, lambda: first.message
    for job in jobs:
        try:
            job()
        except ForkedStoreError:
            refused += 1
    try:
        second.__exit__(ValueError, ValueError(), None)
    finally:
        os._exit(0 if refused == len(jobs) else 1)
is_over.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
first.commit()
second.rollback()
store.close()
""", tmp_path / "s")  # fmt: skip
