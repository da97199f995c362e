"""`python -m tests.mutants` changes the product's Python in small ways, one at a time, and says what finds each change.

cosmic-ray makes the changes, in a copy of the checkout. Faults of the compiled kernel are planted by `tests/plants` and
`tests/crash/gate_plants.py`. The exit code is 1 if a change survives.
"""

import argparse
import difflib
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome
from tests.scratch import copied_tree, environment_in

# One of each kind of cosmic-ray's 190: pairs of operators outnumber all others, and `|` is most often in a type.
OPERATORS = re.compile(
    r"Add_Sub|Sub_Add|Mul_Add|FloorDiv_Mul|Mod_Mul|BitAnd_BitOr|RShift_LShift|LShift_RShift|Eq_NotEq|NotEq_Eq|Lt_LtE"
    r"|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is$|Delete_|AddNot|With|Exception|Number|Decorator|ZeroIteration"
)
# In this order until one finds the change, after the folder of unit tests that has the changed folder's name.
LANES = {
    "quick": "-m 'not slow' tests/unit tests/property",
    "contract": "tests/contract tests/model tests/golden tests/cli",
    "spark": "tests/spark",
    "rest": "tests/crash tests/damage tests/faults tests/field tests/fuzz tests/matrix",
}
# A change that allocates or loops for ever takes neither the machine's memory nor its night.
MEMORY_BYTES, START_S, SLOWER = 4 << 30, 60, 3
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)

Mutant = tuple[Path, str, int]


def mutants_of(path: Path) -> list[Mutant]:
    """Return the file, the operator and its number there, for each change of a file."""
    nodes, found = list(ast_nodes(get_ast_from_path(path))), []
    for name in filter(OPERATORS.search, operator_names()):
        operator = get_operator(name)()
        places = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        found += [(path, name, number) for number in range(places)]
    return found


def run_lane(tests: str, limit_s: float | None) -> str:
    """Run tests in the current folder; return the first that failed, "" if all passed."""
    workers = f"-n {os.cpu_count()} --dist loadfile"
    command = f"{sys.executable} -m pytest -q -x --tb=no -p no:cacheprovider {workers} {tests}"
    outcome, output = run_tests(command, limit_s)
    failed = FAILED.search(output)
    return "" if outcome is TestOutcome.SURVIVED else failed[1] if failed else output[-300:]


def finder(mutant: Mutant, limits: dict[str, float]) -> tuple[str, str, str]:
    """Return the lane and the test that find a mutant, "" if none, and the changed lines."""
    path, operator, number = mutant
    near = (f"tests/unit/{part}" for part in reversed(path.parts[:-1]))
    first = next((folder for folder in near if Path(folder).is_dir()), "")
    with use_mutation(path, get_operator(operator)(), number) as codes:
        before, after = ((code or "").splitlines() for code in codes)
        changed = "\n".join([*difflib.unified_diff(before, after, n=0, lineterm="")][2:])
        tried = [("near", first, max(limits.values()))] if first else []
        for lane, tests, limit_s in tried + [(lane, LANES[lane], limits[lane]) for lane in limits]:
            if test := run_lane(tests, limit_s):
                return lane, test, changed
    return "SURVIVED", "", changed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=150, help="how many are drawn (150)")
    parser.add_argument("--seed", type=int, default=1, help="which are drawn (1)")
    parser.add_argument("--lanes", default="quick,contract", help=f"of {','.join(LANES)}, in their order (quick,contract)")  # fmt: skip
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as made:
        tree = copied_tree(Path(made))
        os.environ |= environment_in(tree)
        os.chdir(tree)
        limits: dict[str, float] = {}
        for lane in options.lanes.split(","):
            began = time.monotonic()
            if failed := run_lane(LANES[lane], None):
                sys.exit(f"{lane} fails without any change: {failed}")
            limits[lane] = START_S + SLOWER * (time.monotonic() - began)
        folders = map(Path, ("core", "tools", "plugins", "pipeline"))
        found = [mutant for path in sorted(find_modules(folders)) for mutant in mutants_of(path)]
        counts: Counter[str] = Counter()
        for mutant in random.Random(options.seed).sample(found, options.count):
            lane, test, changed = finder(mutant, limits)
            print(f"{lane}: {mutant[0]} {test}\n{changed}\n", flush=True)
            counts[lane] += 1
    print("\n".join(f"{counts[lane]:4} {lane}" for lane in ("near", *limits, "SURVIVED")))
    return 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
