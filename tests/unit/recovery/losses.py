"""What a store may lose, or find changed, while it is closed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def poke(file: Path, position: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(data)


def queue_files(path: Path, queue: int) -> list[Path]:
    return sorted((path / "consumequeue" / "t" / str(queue)).iterdir())


def index_files(path: Path) -> list[Path]:
    return sorted((path / "index").iterdir())


def entries_in(file: Path) -> int:
    """Return how many entries of a queue file are there, the last ones included."""
    return -(-len(file.read_bytes().rstrip(b"\0")) // 20)


def lose_queue(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "t" / "1")


def lose_all_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def lose_queue_file(path: Path) -> None:
    queue_files(path, 0)[1].unlink()


def gap_in_queue(path: Path) -> None:
    poke(queue_files(path, 2)[0], 50 * 20, bytes(10 * 20))


def lagging_queue(path: Path) -> None:
    file = queue_files(path, 2)[-1]
    poke(file, (entries_in(file) - 9) * 20, bytes(9 * 20))


def short_queue_file(path: Path) -> None:
    os.truncate(queue_files(path, 1)[-1], 333)


def queue_ahead_of_log(path: Path) -> None:
    file = queue_files(path, 1)[-1]
    entry = (1 << 40).to_bytes(8, "big") + (120).to_bytes(4, "big") + bytes(8)
    poke(file, entries_in(file) * 20, entry)


def lose_index(path: Path) -> None:
    shutil.rmtree(path / "index")


def lose_middle_index_file(path: Path) -> None:
    index_files(path)[1].unlink()


def lose_newest_index_file(path: Path) -> None:
    index_files(path)[-1].unlink()


def break_index_chains(path: Path) -> None:
    poke(index_files(path)[-1], 40, b"\x7f" * 400)


def lose_side_folder(path: Path) -> None:
    shutil.rmtree(path / "penstock")


def lose_all_derived(path: Path) -> None:
    lose_all_queues(path)
    lose_index(path)
    (path / "checkpoint").unlink()
    lose_side_folder(path)


LOSSES: list[Callable[[Path], None]] = [
    lose_queue, lose_all_queues, lose_queue_file, gap_in_queue, lagging_queue, short_queue_file,
    queue_ahead_of_log, lose_index, lose_middle_index_file, lose_newest_index_file, break_index_chains,
    lose_side_folder, lose_all_derived,
]  # fmt: skip
