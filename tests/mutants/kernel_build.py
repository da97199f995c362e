"""Builds the compiled kernel of a scratch copy: not optimized, which takes a third of the time, or with probes."""

import dataclasses
import re
import subprocess
from pathlib import Path

import hatch_build

# Cython writes it above the C of each statement.
_PLACE = re.compile(r'\s*/\* "([^"]+)":(\d+)$')
HERE = Path(__file__).parent
# What a probed object is called by its blocks, and where its lines of source are looked up.
_PROBED = ("-g", "-fsanitize-coverage=trace-pc")


def _recipe(root: Path) -> hatch_build.Recipe:
    found = hatch_build.recipe_of(root)
    flags = tuple("-O0" if flag == "-O2" else flag for flag in found.flags)
    return dataclasses.replace(found, flags=flags)


def build(root: Path) -> str:
    """Build the kernel of a copy; returns what the tools say where it cannot be built, else nothing."""
    recipe = _recipe(root)
    part = recipe.target.with_name("_kernel.part")
    (root / "build" / "kernel").mkdir(parents=True, exist_ok=True)
    try:
        hatch_build.compile_to(part, recipe, root)
    except hatch_build.KernelBuildError as error:
        return str(error)
    part.replace(recipe.target)
    return ""


def build_with_probes(root: Path) -> Path:
    """Build the kernel of a copy so that it notes which blocks run; returns the object."""
    recipe = _recipe(root)
    (root / "build" / "kernel").mkdir(parents=True, exist_ok=True)
    probe = "build/kernel/probe.o"
    compiling = [*recipe.compiler, "-O0", "-fPIC", "-c", str(HERE / "probe.c"), "-o", probe]
    hatch_build.run(compiling, root)
    flags = tuple(flag for flag in recipe.flags if flag != "-s")
    probed = dataclasses.replace(recipe, flags=(*flags, *_PROBED, probe))
    hatch_build.compile_to(recipe.target, probed, root)
    return recipe.target


def lines_of(root: Path, target: Path, blocks: list[int]) -> dict[int, tuple[str, int]]:
    """Return file name and line for the blocks of a probed object; those of C that is no one's are left out."""
    if not blocks:
        return {}
    # A block is noted by the address after its call of the probe.
    asked = "".join(f"{block - 1:#x}\n" for block in blocks)
    told = subprocess.run(
        ["addr2line", "-e", str(target)], input=asked, stdout=subprocess.PIPE, text=True, check=True
    )
    places = _places_in_c((root / "build" / "kernel" / "_kernel.c").read_text())
    found = {}
    for block, line in zip(blocks, told.stdout.splitlines(), strict=True):
        path, _, number = line.partition(" ")[0].rpartition(":")
        name = Path(path).name
        if name == "_kernel.c" and number.isdecimal():
            found[block] = places[int(number)]
        elif number.isdecimal():
            found[block] = (name, int(number))
    return found


def _places_in_c(text: str) -> list[tuple[str, int]]:
    """Return the place in Cython for each line of the C that was made of it, from line 1 on."""
    places = [("", 0)]
    for line in text.splitlines():
        found = _PLACE.match(line)
        places.append((Path(found[1]).name, int(found[2])) if found else places[-1])
    return places
