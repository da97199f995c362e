"""`python -m tests.plants` plants every fault, with names those: says which were found by their tests.

`--bare` runs the named tests without the fault, and `-v` shows what they print.
"""

import sys
import time

from tests.plants.hunting import missed, run
from tests.plants.planting import plants

table = plants()
flags = {word for word in sys.argv[1:] if word.startswith("-")}
wanted = [word for word in sys.argv[1:] if word not in flags]
unlucky = 0
for name in wanted or table:
    plant, began = table[name], time.monotonic()
    if "--bare" in flags:
        code, out = run(plant, planted=False)
        said = "passes without" if code == 0 else "FAILS WITHOUT"
    else:
        out = missed(plant)
        said = "NOT FOUND" if out else "found"
        if "-v" in flags:
            out = run(plant)[1]
    unlucky += said.isupper()
    print(f"{name}: {said}, {time.monotonic() - began:.1f} s")
    if "-v" in flags:
        print(out)
sys.exit(unlucky > 0)
