"""Every fuzz target over its seeds, found cases and mutations of both, without atheris."""

import random
from pathlib import Path

import pytest
from tests.fuzz import TARGETS, load
from tests.lanes import NIGHT

SEEDS = Path(__file__).parent / "seeds"
# A few thousand a target where one costs microseconds; fewer where it writes files and reads a store.
MUTATIONS = {"records": 4000, "segments": 500, "queues": 400, "indexes": 600, "marks": 1500, "tables": 1000, "configs": 1500}  # fmt: skip


pytestmark = pytest.mark.usefixtures("quiet")


def seeds(name: str) -> list[Path]:
    return sorted((SEEDS / name).iterdir())


CASES = [(name, path) for name in TARGETS for path in seeds(name)]


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_seed_ends_in_an_answer(name: str, path: Path) -> None:
    load(name)(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_seeds_end_in_an_answer(name: str) -> None:
    target = load(name)
    chance = random.Random(11)
    pool = [path.read_bytes() for path in seeds(name)]
    for _ in range(MUTATIONS[name] if NIGHT else MUTATIONS[name] // 3):
        data = mutated(chance, chance.choice(pool), pool)
        try:
            target(data)
        except Exception:
            print(f"{name}: {data!r}")
            raise


def mutated(chance: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """Return the data with one to four things wrong, each of another kind."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        size = min(chance.choice((1, 2, 4, 8, 20, 64)), len(made) - at)
        match chance.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                made[at : at + size] = bytes(size)
            case 2:
                made[at : at + size] = chance.randbytes(size)
            case 3:
                number = chance.choice((0, 1, -1, 0x7FFFFFFF, -0x80000000, chance.randrange(256)))
                made[at : at + 4] = number.to_bytes(4, "big", signed=True)
            case 4:
                del made[at : at + size]
            case 5:
                other = chance.choice(pool)
                start = chance.randrange(len(other) + 1)
                made[at : at + size] = other[start : start + size]
            case _:
                made[at:at] = chance.randbytes(size)
    return bytes(made)
