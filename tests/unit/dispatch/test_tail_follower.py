"""Many queues, and readers elsewhere while segments are recycled."""

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.files import Entry, Files
from penstock.testing import ManualWorkers, open_store

QUEUES_OF_200: dict[str, Any] = {"geometry.queue_entries": 200}


# --- many queues


@pytest.mark.slow
def test_many_queues_need_few_open_files(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"index.consume-queue.open_files_max": 8}
    with open_store(tmp_path / "s", **chosen) as store:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(50):
            store.create_topic(f"topic{number}", queues=20)
        for turn in range(2):
            store.put_many([
                penstock.Message(f"topic{number % 50}", b"%d" % turn, queue=number // 50)
                for number in range(1000)
            ])  # fmt: skip
            assert len(store.topics()) == 50
        assert sum(len(queues) for queues in store.topics().values()) == 1000
        for number in range(0, 1000, 7):
            assert len(store.read(f"topic{number % 50}", number // 50).messages) == 2
        # A segment has its file, one for its map, and its folder for the thread that syncs, which has the marks too
        # and may have one open just now.
        limit = 10 + 3 * store.stats()["segments"]
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= limit


# --- a recycled segment and a reader elsewhere


@pytest.mark.slow
def test_a_reader_elsewhere_never_takes_new_bytes_for_old_ones(tmp_path: Path) -> None:
    """It has the old segment's file open when the file becomes the next segment."""
    workers = ManualWorkers()
    with open_store(tmp_path / "s", spawn=workers, alloc="recycle") as store:
        for number in range(200):
            store.put("t", b"%d:" % number + b"o" * 1500, queue=0)
        store.flush()
        store.topics()
        reader = penstock.open(tmp_path / "s", read_only=True, environ={})
        first = reader.read("t", 0, 0, 3).messages
        assert len(first) == 3
        store.discard_before(log_offset=store.stats()["log_end_offset"])
        workers.run("penstock-allocate")
        for number in range(200, 500):
            store.put("t", b"%d:" % number + b"n" * 1500, queue=0)
            workers.run("penstock-allocate")
        assert store.stats()["strategies"]["alloc"]["segments_recycled"] > 0
        store.topics()
        with pytest.raises(penstock.PenstockError, match="outside the range that the store holds"):
            reader.at(first[0].log_offset)
        assert reader.read("t", 0, 0, 3).status == "OFFSET_TOO_SMALL"
        assert reader.lowlevel.damaged_reads == 0
        reader.close()


class Lists(Files):
    """Counts how often a queue's folder is listed."""

    count = 0

    def entries(self, folder: Path) -> list[Entry]:
        self.count += "consumequeue" in folder.parts
        return super().entries(folder)


@pytest.mark.parametrize("steps", [[1, 1, 3, 50, 1], [150, 49, 1, 1], [199, 2, 300, 1], [700, 1, 255, 256, 257]])  # fmt: skip
def test_a_reader_takes_in_what_is_added_and_lists_folders_only_where_files_come(
    steps: list[int], tmp_path: Path
) -> None:
    """Queue files have 200 entries here; a full one may be followed by another."""
    files = Lists()
    with open_store(tmp_path / "s", **QUEUES_OF_200) as store:
        store.put("t", b"first", queue=0)
        with penstock.open(tmp_path / "s", read_only=True, files=files, environ={}) as reader:
            store.max_offset("t", 0)
            assert reader.max_offset("t", 0) == 1
            end = 1
            for step in steps:
                before = files.count
                store.put_many([penstock.Message("t", b"x", queue=0) for _ in range(step)])
                assert store.max_offset("t", 0) == end + step
                assert reader.max_offset("t", 0) == end + step
                if (end - 1) // 200 == (end + step) // 200:
                    assert files.count == before
                end += step
                assert reader.min_offset("t", 0) == 0
                assert reader.read("t", 0, end - 1).messages[0].queue_offset == end - 1


@pytest.mark.parametrize("taken_away", ["the last entries", "the first file", "all files"])
def test_a_reader_looks_again_where_entries_are_taken_away(taken_away: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    folder = path / "consumequeue" / "t" / "0"
    with open_store(path, **QUEUES_OF_200) as store:
        store.put_many([penstock.Message("t", b"x", queue=0) for _ in range(450)])
    with penstock.open(path, read_only=True, environ={}) as reader:
        assert (reader.min_offset("t", 0), reader.max_offset("t", 0)) == (0, 450)
        names = sorted(each.name for each in folder.iterdir())
        if taken_away == "the last entries":
            with (folder / names[-1]).open("r+b") as file:
                file.seek(30 * 20)
                file.write(bytes(20 * 20))
            expected = (0, 430)
        elif taken_away == "the first file":
            (folder / names[0]).unlink()
            expected = (200, 450)
        else:
            for name in names:
                (folder / name).unlink()
            expected = (0, 0)
        assert (reader.min_offset("t", 0), reader.max_offset("t", 0)) == expected
