"""A process that follows: it feeds the bytes of a file to a follower in pieces of random size, and prints what it synced.

Usage: python -m tests.crash.copier STORE FILE SEED
"""

import json
import sys
from pathlib import Path
from random import Random

from tests.following import follow

from penstock.durability.written_ranges import ranges_of


def main() -> None:
    root, path, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    raw, chance = path.read_bytes(), Random(seed)
    ranges = ranges_of(json.loads(path.with_suffix(".json").read_text()))
    with follow(root, flush="sync" if seed % 2 else "async") as store:
        store.note_coverage(ranges)
        print("end", store.end_offset, flush=True)
        while (at := store.next_offset) < len(raw):
            store.feed(at, raw[at : at + chance.choice((50, 400, 3000, 20_000))])
            print("kept", store.end_offset, flush=True)
            if chance.random() < 0.1:
                print("synced", store.flush(), flush=True)


if __name__ == "__main__":
    main()
