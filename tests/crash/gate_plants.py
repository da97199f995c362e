"""Bugs planted in the C of the gate, and the exploration that must find each.

All are built into one kernel of a scratch copy, where `PENSTOCK_GATE_PLANT` names the one that takes effect.
`python -m tests.crash.gate_plants` builds it and hunts all of them: it prints how each was found.
"""

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hatch_build
from tests.crash.plants import crashes, failures
from tests.scratch import copied_tree, environment_in

GATE = "core/penstock/_kernel/gate.h"
VARIABLE = "PENSTOCK_GATE_PLANT"
_SWITCH = f"""
#include <stdlib.h>
static int planted(const char *name) {{
    const char *wanted = getenv("{VARIABLE}");
    return wanted && !strcmp(wanted, name);
}}
"""
ASYNC: dict[str, Any] = {"write": "mmap", "alloc": "on-demand", "flush": "async"}
SYNC: dict[str, Any] = {**ASYNC, "flush": "sync"}


class Plant(NamedTuple):
    """A bug: what is wrong, text that stands in `gate.h` once, what stands there instead, and what finds it."""

    about: str
    old: str
    new: str
    hunt: Callable[[], str]


PLANTS = {
    "published-before-the-mark": Plant(
        "the flushed offset is published before the progress file records it",
        "    if ((*error = mark_flushed(",
        "    if (PLANTED) __atomic_store_n(&g->flushed, r->target.end, __ATOMIC_RELEASE);\n"
        "    if ((*error = mark_flushed(",
        crashes(**ASYNC),
    ),
    "no-mark": Plant(
        "the progress file does not record a sync",
        "    g->marked = flushed < g->sound",
        "    if (!PLANTED) g->marked = flushed < g->sound",
        crashes(**ASYNC),
    ),
    "file-passed-over": Plant(
        "a round passes over the last of several files",
        "i < r->n_files && !failure; i++)\n        failure = file_sync",
        "i < r->n_files - (PLANTED && i) && !failure; i++)\n        failure = file_sync",
        crashes(**ASYNC),
    ),
    "nothing-synced": Plant(
        "a round syncs no file",
        "    failure = round_sync(g, r, error);",
        "    failure = PLANTED ? FAILURE_NONE : round_sync(g, r, error);",
        crashes(**SYNC),
    ),
    "told-of-success": Plant(
        "waiters are told of a failure as of a success",
        "return *outcome = GATE_FAILED, 1;",
        "return *outcome = PLANTED ? GATE_FLUSHED : GATE_FAILED, 1;",
        failures(**SYNC),
    ),
    "reached-in-finally": Plant(
        "the flushed offset moves although the sync failed",
        "    else if (!failure)\n        gate_reached(g, &round);",
        "    if (!failure || PLANTED)\n        gate_reached(g, &round);",
        failures(**ASYNC),
    ),
    "sync-retried": Plant(
        "a sync that failed is tried again",
        "        *error = g->calls.sync(g->calls.store, f->what, end);",
        "        *error = g->calls.sync(g->calls.store, f->what, end);\n"
        "        if (*error && PLANTED) *error = g->calls.sync(g->calls.store, f->what, end);",
        failures(**ASYNC),
    ),
}


def planted_source(source: str) -> str:
    """Return the C with all plants in it, each behind its switch."""
    for name, plant in PLANTS.items():
        if source.count(plant.old) != 1:
            raise ValueError(f"{name}: the text to change is there {source.count(plant.old)} times")
        source = source.replace(plant.old, plant.new.replace("PLANTED", f'planted("{name}")'))
    return source.replace("#pragma once", f"#pragma once{_SWITCH}", 1)


def built(folder: Path) -> Path:
    """Return a copy of the tree whose kernel has all plants in it; it is not optimized, which takes a third of the time."""
    tree = copied_tree(folder)
    gate = tree / GATE
    gate.write_text(planted_source(gate.read_text()))
    recipe = hatch_build.recipe_of(tree)
    flags = tuple("-O0" if flag == "-O2" else flag for flag in recipe.flags)
    (tree / "build" / "kernel").mkdir(parents=True)
    recipe.target.unlink(missing_ok=True)
    hatch_build.compile_to(recipe.target, dataclasses.replace(recipe, flags=flags), tree)
    return tree


def hunt(tree: Path, name: str) -> str:
    """Hunt one of the plants in a process of its own; return how it was found, "" if it was not."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.gate_plants", "--here", name], cwd=tree,
        env={**environment_in(tree), VARIABLE: name}, capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    return done.stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(PLANTS[sys.argv[2]].hunt())
    else:
        with tempfile.TemporaryDirectory() as made:
            tree = built(Path(made))
            for wanted in sys.argv[1:] or PLANTS:
                print(f"{wanted}: {hunt(tree, wanted) or 'NOT FOUND'}", flush=True)
