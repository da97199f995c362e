"""Waking, in one process: the word, the file it lies in, what one follower makes of it, and when the engine wakes."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import penstock
from penstock._kernel import WakeWord
from penstock.errors import StoreClosedError
from penstock.files import File, Files
from penstock.runtime.waking import SIZE, Waiter, WakeMap, Wakes, WorkWaiter
from penstock.testing import FaultyFiles, ManualWorkers, open_store
from penstock_alloc.allocators import OnDemandAllocator

# Long enough to tell a lost wake-up: nothing here sleeps so long.
FOR_EVER_S = 600.0


@pytest.fixture
def side(tmp_path: Path) -> Path:
    (tmp_path / "penstock").mkdir()
    return tmp_path / "penstock" / "wake"


def word_of(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[64:68], "little", signed=True)


@pytest.fixture
def made(side: Path) -> Iterator[WakeMap]:
    """The file of a writer, and its map."""
    found = WakeMap.make(Files(), side)
    yield found
    found.close()


def find(side: Path, files: Files | None = None) -> WakeMap:
    found = WakeMap.find(files or Files(), side)
    assert found is not None
    return found


# --- the word


def test_who_asked_before_the_wake_does_not_sleep_and_one_wake_is_for_all(
    made: WakeMap, side: Path
) -> None:
    before = side.read_bytes()
    assert not made.wake()
    assert side.read_bytes() == before, "nobody waits"
    seen = [made.ask(), made.ask()]
    assert all(each & 1 for each in seen)
    assert made.wake()
    assert not made.wake()
    assert all(made.sleep(each, FOR_EVER_S) for each in seen)


def test_who_asks_after_a_wake_is_not_taken_for_awake(made: WakeMap) -> None:
    """A word of one bit could not tell the two: one who asked before, and sleeps yet, from one who has just asked."""
    first = made.ask()
    made.wake()
    second = made.ask()
    assert first != second
    assert made.sleep(first, FOR_EVER_S)
    assert not made.sleep(second, 0.001)


def test_a_sleeper_is_woken_by_another_thread(made: WakeMap) -> None:
    woken = []
    seen = made.ask()
    thread = threading.Thread(target=lambda: woken.append(made.sleep(seen, FOR_EVER_S)))
    thread.start()
    assert made.wake()
    thread.join()
    assert woken == [True]


def test_the_count_goes_past_the_greatest_number(made: WakeMap, side: Path) -> None:
    for greatest in (0x7FFFFFFE, 0xFFFFFFFE):
        with side.open("r+b") as file:
            file.seek(64)
            file.write(greatest.to_bytes(4, "little"))
        seen = made.ask()
        assert seen & 0xFFFFFFFF == greatest + 1
        assert made.wake()
        assert word_of(side) & 0xFFFFFFFF == (greatest + 2) & 0xFFFFFFFF
        assert made.sleep(seen, FOR_EVER_S)


@pytest.mark.parametrize("position", [-4, 2, SIZE, SIZE - 2])
def test_a_word_lies_within_the_memory(position: int) -> None:
    with pytest.raises(ValueError, match="no word"):
        WakeWord(Files().memory(SIZE), position, 0)


# --- the file


@pytest.mark.parametrize(
    "stands_there", ["nothing", "empty", "short", "long", "strange", "link", "pipe"]
)
def test_a_writer_makes_anew_what_is_no_such_file(stands_there: str, side: Path) -> None:
    elsewhere = side.parents[1] / "elsewhere"
    elsewhere.write_bytes(b"PSTKWAKE".ljust(SIZE, b"\0"))
    contents = {"empty": b"", "short": b"PSTKWAKE", "long": b"PSTKWAKE".ljust(SIZE + 1, b"\0"),
                "strange": b"x" * SIZE}  # fmt: skip
    if stands_there == "link":
        side.symlink_to(elsewhere)
    elif stands_there == "pipe":
        os.mkfifo(side)
    elif stands_there in contents:
        side.write_bytes(contents[stands_there])
    assert WakeMap.find(Files(), side) is None
    made = WakeMap.make(Files(), side)
    found = WakeMap.find(Files(), side)
    assert found is not None
    assert found.is_of_this_boot
    seen = found.ask()
    assert made.wake()
    assert found.sleep(seen, FOR_EVER_S)
    assert elsewhere.read_bytes() == b"PSTKWAKE".ljust(SIZE, b"\0")
    made.close()
    found.close()


def test_a_writer_that_can_have_no_file_wakes_within_its_process(
    side: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side.mkdir()
    wakes = Wakes(Files(), side.parents[1], writes=True)
    assert "cannot be used" in caplog.text
    found = wakes.map()
    assert found is not None
    seen = found.ask()
    assert wakes.wake()
    assert found.sleep(seen, FOR_EVER_S)
    wakes.close()


@pytest.mark.parametrize("size", [0, 10, 64, 67])
def test_a_file_that_is_cut_short_is_an_error_to_who_waits(
    size: int, made: WakeMap, side: Path
) -> None:
    """A store into it would kill the process (SIGBUS); within the last page it would be lost, and was set again for ever."""
    found = find(side)
    seen = found.ask()
    os.truncate(side, size)
    with pytest.raises(OSError, match=r"cannot be changed|truncated") as caught:
        found.ask()
    assert caught.value.errno == (errno.EIO if size else errno.EFAULT)
    if not size:
        with pytest.raises(OSError, match="wake word is gone"):
            found.sleep(seen, FOR_EVER_S)
    found.close()


def test_a_file_of_another_start_of_the_machine_is_not_trusted(side: Path) -> None:
    class Restarted(Files):
        def boot_id(self) -> bytes:
            return b"another"

    class Unknown(Files):
        def boot_id(self) -> bytes:
            return b""

    for files in (Restarted(), Unknown()):
        WakeMap.make(files, side).close()
        for here, is_trusted in ((files, type(files) is Restarted), (Files(), False)):
            found = find(side, here)
            assert found.is_of_this_boot is is_trusted
            found.close()


# --- one follower


class Script:
    """Stands in for the file and its word: tells whether a wake ended a sleep, and notes how long it was to be."""

    def __init__(self, *, is_of_this_boot: bool = True) -> None:
        self.is_of_this_boot = is_of_this_boot
        self.wakes: list[bool] = []
        self.sleeps: list[float] = []

    def map(self) -> "Script":
        return self

    def look_again(self) -> None:
        pass

    def ask(self) -> int:
        return 1

    def sleep(self, _seen: int, at_most_s: float) -> bool:
        self.sleeps.append(at_most_s)
        return self.wakes.pop(0)

    def follow(self, looks: list[tuple[bool, bool]]) -> None:
        """Go through looks: whether each found something, and if not, whether a wake ended the rest after it."""
        wakes: Any = self
        waiter = Waiter(wakes)
        for finds, is_woken in looks:
            waiter.ask()
            if finds:
                waiter.go_on()
            else:
                self.wakes.append(is_woken)
                waiter.rest()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr("penstock.runtime.waking.time.sleep", made.append)
    return made


def test_where_wakes_arrive_a_follower_sleeps_long(pauses: list[float]) -> None:
    script = Script()
    script.follow([(False, False), (False, True), (True, False), (False, False)])
    assert (script.sleeps, pauses) == ([0.25, 0.25, 0.25], [])


def test_where_nobody_wakes_a_follower_sleeps_short_until_somebody_does(
    pauses: list[float],
) -> None:
    script = Script()
    unsaid = [(False, False), (True, False)]
    again = [(False, False), (False, False), (False, True), (True, False), (False, True)]
    script.follow([*unsaid, *again])
    assert (script.sleeps, pauses) == ([0.25, 0.001, 0.002, 0.005, 0.25], [])


def test_a_follower_of_a_writer_elsewhere_sleeps_short_from_the_beginning(
    pauses: list[float],
) -> None:
    script = Script(is_of_this_boot=False)
    script.follow([(False, False)] * 8)
    assert script.sleeps == [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.05, 0.05]
    assert pauses == []


def test_wakes_for_others_messages_are_gathered(pauses: list[float]) -> None:
    script = Script()
    script.follow([(False, True)] * 7 + [(True, False), (False, True)])
    assert (script.sleeps, pauses) == ([0.25] * 8, [0.01] * 4)


def test_without_a_file_a_follower_sleeps_short(pauses: list[float], tmp_path: Path) -> None:
    waiter = Waiter(Wakes(Files(), tmp_path))
    for _ in range(7):
        waiter.ask()
        waiter.rest()
    assert pauses == [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.05]


def test_a_follower_goes_over_to_a_file_that_was_put_in_the_place_of_the_first(side: Path) -> None:
    WakeMap.make(Files(), side).close()
    wakes = Wakes(Files(), side.parents[1])
    first = wakes.map()
    assert first is not None
    wakes.look_again()
    assert wakes.map() is first
    side.unlink()
    wakes.look_again()
    assert wakes.map() is None
    made = WakeMap.make(Files(), side)
    again = wakes.map()
    assert again is not None
    seen = again.ask()
    assert made.wake()
    assert again.sleep(seen, FOR_EVER_S)


class ReadOnlyMount(Files):
    """Nothing may be written."""

    def open(self, path: Path, *, writable: bool = False) -> File:
        if writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return super().open(path)


def test_a_follower_on_a_read_only_mount_sees_messages_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("t", b"0", queue=0)
        with penstock.open(path, read_only=True, files=ReadOnlyMount(), environ={}) as reader:
            coming = reader.scan("t", follow=True)
            assert next(coming).body == b"0"
            before = (path / "penstock" / "wake").read_bytes()
            store.put("t", b"1", queue=0)
            assert next(coming).body == b"1"
            assert (path / "penstock" / "wake").read_bytes() == before


def test_a_follower_is_told_when_its_own_process_closes_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.put("t", b"0", queue=0)
    coming = store.scan("t", follow=True)
    next(coming)
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            next(coming)
        except StoreClosedError as error:
            ends.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    store.close()
    thread.join(120)
    assert len(ends) == 1


# --- the engine


class PuttingAllocator(OnDemandAllocator):
    """Puts a message when it is told that a segment is full, which is within a round of the follower."""

    name: ClassVar[str] = "putting"
    put: ClassVar[Callable[[], object]]

    def sealed(self, path: Path) -> None:
        type(self).put()


def bodies_elsewhere(path: Path) -> list[bytes]:
    """Return what a reader in another process sees."""
    with penstock.open(path, read_only=True, environ={}) as reader:
        return [message.body for message in reader.scan("t")]


def test_a_put_within_the_round_is_not_forgotten(tmp_path: Path) -> None:
    """It finds the follower busy, and does not wake it."""
    workers = ManualWorkers()
    with open_store(
        tmp_path / "s", spawn=workers, strategies=[PuttingAllocator], alloc="putting"
    ) as store:
        PuttingAllocator.put = staticmethod(lambda: store.put("t", b"late", queue=0))
        for _ in range(2):
            store.put("u", b"x" * 40_000, queue=0)
        # They are dispatched by this call, so that the round itself finds none.
        store.topics()
        # At once again: not None, which is until somebody wakes it.
        assert workers.run("penstock-follow") == 0
        assert workers.run("penstock-follow") is not None
        assert bodies_elsewhere(tmp_path / "s") == [b"late"]


def test_under_a_policy_that_waits_the_follower_is_woken_when_the_message_is_durable(
    tmp_path: Path,
) -> None:
    workers = ManualWorkers()
    with open_store(tmp_path / "s", spawn=workers, flush="sync") as store:
        workers.run("penstock-follow")
        follow = workers.by_name["penstock-follow"]
        follow.is_awake = False
        store.put("t", b"0", queue=0, wait=False)
        awake = [follow.is_awake]
        store.flush()
        assert [*awake, follow.is_awake] == [False, True]
        workers.run("penstock-follow")
        assert bodies_elsewhere(tmp_path / "s") == [b"0"]


def test_a_store_opens_and_wakes_where_the_file_cannot_be_made(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.plan.fail("create", errno.EACCES, path="penstock/wake")
    with open_store(tmp_path / "s", files=files) as store:
        coming = store.scan("t", follow=True)
        store.put("t", b"0", queue=0)
        assert next(coming).body == b"0"
    assert not (tmp_path / "s" / "penstock" / "wake").exists()


# --- background work of the writer


def test_any_process_wakes_the_work_of_the_writer_and_no_reader(side: Path) -> None:
    work = WorkWaiter(Wakes(Files(), side.parents[1], writes=True))
    found = find(side)
    reading = found.ask()
    assert work.ask()
    WorkWaiter(Wakes(Files(), side.parents[1])).wake()
    # Returns at once: it would take until the end of the test run otherwise.
    assert work.rest(10_000)
    assert not found.sleep(reading, 0.001)
    found.wake()
    assert found.sleep(reading, 0.001)


def test_work_that_has_not_asked_or_has_found_some_does_not_rest(side: Path) -> None:
    work = WorkWaiter(Wakes(Files(), side.parents[1], writes=True))
    assert not work.rest()
    assert work.ask()
    work.go_on()
    assert not work.rest()
    # One request is for one rest.
    assert work.ask()
    assert work.rest(0)
    assert not work.rest()


def test_work_without_a_usable_file_says_so(side: Path) -> None:
    work = WorkWaiter(Wakes(Files(), side.parents[1]))
    work.wake()
    assert not work.ask()
    assert not work.rest()
    made = WakeMap.make(Files(), side)
    work = WorkWaiter(Wakes(Files(), side.parents[1]))
    os.truncate(side, 0)
    assert made.inode
    assert not work.ask()
    work = WorkWaiter(Wakes(Files(), side.parents[1]))
    work.wake(always=True)


def test_a_file_that_is_truncated_ends_the_rest(side: Path) -> None:
    work = WorkWaiter(Wakes(Files(), side.parents[1], writes=True))
    assert work.ask()
    os.truncate(side, 0)
    assert not work.rest()
    work.wake(always=True)
