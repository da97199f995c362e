"""Two writers: the second is refused at once and told who holds the store, however it tries."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.faults.children import TIMES, environment, start
from tests.lanes import explored

import penstock
from penstock.errors import StoreLockedError

HOLD = textwrap.dedent("""
    import sys, time, penstock
    store = penstock.open(sys.argv[1], environ={})
    store.put("t", b"x", queue=0)
    print("open", flush=True)
    time.sleep(600)
""")


@pytest.mark.parametrize("gone", ["", "lock", "penstock/holder", "abort"])
def test_a_second_process_is_refused_and_told_the_first(gone: str, tmp_path: Path) -> None:
    """Whoever removed the lock file could open a second writer: the lock was only on that file."""
    holder = start(HOLD, tmp_path / "s")
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "open\n"
        if gone:
            (tmp_path / "s" / gone).unlink()
        with pytest.raises(StoreLockedError) as caught:
            penstock.open(tmp_path / "s", environ={})
        if gone != "penstock/holder":
            assert f"process {holder.pid}" in str(caught.value)
        with penstock.open(tmp_path / "s", read_only=True) as reader:
            assert reader.max_offset("t", 0) <= 1
    finally:
        holder.kill()
        holder.communicate()
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert [m.body for m in store.scan("t")] == [b"x"]


def test_a_lock_taken_as_java_takes_it_is_refused_naming_its_process(
    open_small: OpenStore, tmp_path: Path
) -> None:
    open_small().close()
    script = 'import fcntl, sys, time; f = open(sys.argv[1] + "/lock", "r+b"); fcntl.lockf(f, fcntl.LOCK_EX, 1); print("held", flush=True); time.sleep(600)'
    holder = start(script, tmp_path / "store")
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError, match=f"process {holder.pid}, which is not Penstock"):
            open_small()
    finally:
        holder.kill()
        holder.communicate()


ENDS = {
    "the end of the program": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise RuntimeError('of the program')",
    "os._exit": "os._exit(0)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_a_process_that_ends_without_close_heals_at_the_next_open(
    end: str, flush: str, tmp_path: Path
) -> None:
    script = textwrap.dedent("""
        import os, signal, sys, penstock
        store = penstock.open(sys.argv[1], environ={}, flush=sys.argv[2])
        for number in range(50):
            store.put("t", b"%d" % number, keys=["k"], queue=0)
    """) + ENDS[end]  # fmt: skip
    start(script, tmp_path / "s", flush).communicate(timeout=60)
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "abnormal"
        assert [m.body for m in store.scan("t")] == [b"%d" % n for n in range(50)]
        assert len(store.find("k", "t")) == 50
        assert not list(store.verify())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_real_interrupt_of_a_real_writer_loses_nothing_and_closes_cleanly(
    flush: str, tmp_path: Path
) -> None:
    script = textwrap.dedent("""
        import sys, penstock
        with penstock.open(sys.argv[1], environ={}, flush=sys.argv[2]) as store:
            number = store.max_offset("t", 0)
            print("open", flush=True)
            while True:
                store.put("t", b"%d" % number, keys=["k"], queue=0)
                number += 1
                print(number, flush=True)
    """)  # fmt: skip
    seen = 0
    for turn in range(3 * TIMES):
        writer = start(script, tmp_path / "s", flush)
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.strip() == str(seen + 20 + turn * 37):
                break
        writer.send_signal(signal.SIGINT)
        rest, err = writer.communicate(timeout=60)
        assert "KeyboardInterrupt" in err
        with penstock.open(tmp_path / "s", environ={}) as store:
            assert store.recovery is not None
            assert store.recovery.state == "clean", err
            count = store.max_offset("t", 0)
            numbers = [int(line) for line in rest.split("\n")[:-1] if line.isdigit()]
            assert count >= max(numbers, default=0)
            assert [m.body for m in store.scan("t")] == [b"%d" % n for n in range(count)]
            assert not list(store.verify())
        seen = count


@pytest.mark.sampled(3)
@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_writers_killed_under_readers_lose_nothing_and_show_nothing_wrong(
    flush: str, tmp_path: Path
) -> None:
    """A reader follows through all of the kills."""
    from tests.crash.test_kill import check, run_and_kill  # noqa: PLC0415 - what kills is shared
    from tests.crash.writer import SMALL  # noqa: PLC0415

    path, count = tmp_path / "s", 0
    follow = textwrap.dedent("""
        import sys, penstock
        from tests.crash.writer import body
        from penstock.errors import PenstockError
        seen = 0
        while True:
            try:
                with penstock.open(sys.argv[1], read_only=True) as reader:
                    for number, message in enumerate(reader.scan("t")):
                        assert message.body == body(number), number
                        seen = max(seen, number)
            except PenstockError:
                continue
            except FileNotFoundError:
                continue
    """)  # fmt: skip
    run_and_kill(path, {"flush": flush}, 0, 500)
    reader = subprocess.Popen(
        [sys.executable, "-c", follow, str(path)], env=environment(), stderr=subprocess.PIPE
    )
    try:
        for turn in range(explored(4 * TIMES, least=2)):
            with penstock.open(path, environ={}, **SMALL) as store:
                count = store.max_offset("t", 0) + store.max_offset("t", 1) + store.max_offset("t", 2)  # fmt: skip
            acknowledged = run_and_kill(path, {"flush": flush}, count, 1 + 400 * (turn % 5))
            with penstock.open(path, environ={}, **SMALL) as store:
                count = check(store, acknowledged)
        assert reader.poll() is None, "the reader met no wrong message"
    finally:
        reader.kill()
        _, err = reader.communicate()
    assert b"AssertionError" not in err
    assert count > 0
