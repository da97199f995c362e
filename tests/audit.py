"""Asks whether what Penstock needs has known vulnerabilities: `python -m tests.audit`, part of `make check`.

What is asked about: every package that an extra of `pyproject.toml` or the build needs, and all that those need. What is not
installed here (zig's compiler on a machine that has one, the fuzzer) is resolved by pip first, without installing it.

A finding fails, unless `tests/audit_notes.toml` has a dated note on it; a note without its finding fails, too. An index that
cannot be reached, or that does not know of a package, is reported and fails only with PENSTOCK_REQUIRE_AUDIT=1: the
check must also run where there is no network.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import hatch_build
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NOTES = ROOT / "tests" / "audit_notes.toml"
# The Makefile installs these, besides what the hook names.
BUILD = [hatch_build.HATCHLING, hatch_build.CYTHON, hatch_build.ZIG, "editables"]
SECONDS = 300


@attrs.frozen(kw_only=True)
class Verdict:
    """What the index knows: findings as (package, id, sentence), and the packages that it gave no answer on."""

    ours: list[tuple[str, str, str]]
    others: list[tuple[str, str, str]]
    unknown: list[str]


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def asked() -> list[str]:
    """Return the requirements of the project: its own, those of every extra, and those of the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    lines = [line for extra in extras for line in extra if not line.startswith("penstock[")]
    return [*project["project"]["dependencies"], *lines, *project["build-system"]["requires"], *BUILD]  # fmt: skip


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Tell whether a distribution that is installed with `extras` needs this here."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def installed(lines: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the installed versions of what the requirements need, by name, and those that are not installed."""
    found: dict[str, str] = {}
    missing: list[str] = []
    waiting = [Requirement(line) for line in lines]
    done: set[str] = set()
    while waiting:
        one = waiting.pop()
        key = f"{normal(one.name)}[{','.join(sorted(one.extras))}]"
        if key in done:
            continue
        done.add(key)
        try:
            found[normal(one.name)] = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            missing.append(str(one))
            continue
        below = map(Requirement, metadata.requires(one.name) or [])
        waiting += [each for each in below if applies(each, one.extras)]
    return found, missing


def resolved(lines: list[str]) -> dict[str, str]:
    """Return the versions that pip would install for requirements; none for one that it cannot install here."""
    found: dict[str, str] = {}
    for line in lines:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", line]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        if done.returncode:
            print(f"audit: not asked about: {line}, which pip cannot install in this Python")
            continue
        for each in json.loads(done.stdout)["install"]:
            found[normal(each["metadata"]["name"])] = each["metadata"]["version"]
    return found


def verdict(report: str, ours: Iterable[str]) -> Verdict | None:
    """Return what pip-audit's JSON says; None if it is none."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    found = Verdict(ours=[], others=[], unknown=[])
    for each in packages:
        if "skip_reason" in each:
            found.unknown.append(normal(each["name"]))
        for hole in each.get("vulns", []):
            fixed = ", ".join(hole.get("fix_versions", [])) or "none yet"
            line = f"{each['name']} {each['version']}: {hole['id']}, fixed in {fixed}"
            group = found.ours if normal(each["name"]) in ours else found.others
            group.append((normal(each["name"]), hole["id"], line))
    return found


def notes(path: Path = NOTES) -> dict[tuple[str, str], str]:
    """Return the dated notes by package and id; raises `ValueError` for one without date or reason."""
    found = {}
    for note in tomllib.loads(path.read_text()).get("note", []):
        if not isinstance(note.get("date"), date) or not str(note.get("why", "")).strip():
            raise ValueError(f"{path.name}: {note} needs a date (2026-01-31) and a reason (why)")
        found[normal(note["package"]), note["id"]] = f"{note['date']}: {note['why']}"
    return found


def judged(found: Verdict, noted: dict[tuple[str, str], str]) -> list[str]:
    """Print what was found; return what fails: findings without a note, and notes without their finding."""
    for _, _, line in found.others:
        print(f"audit: in a package that Penstock does not need: {line}")
    failing = []
    for package, known, line in found.ours:
        note = noted.get((package, known))
        print(f"audit: {line}" + (f"; noted on {note}" if note else ""))
        if note is None:
            failing.append(line)
    present = {(package, known) for package, known, _ in found.ours}
    for package, known in noted.keys() - present:
        if package not in found.unknown:
            failing.append(f"the note on {package} {known} has no finding any more: remove it")
            print(f"audit: {failing[-1]}")
    return failing


def ask(versions: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run pip-audit on exactly these versions, without an environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "pinned.txt"
        pinned.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(pinned), "--no-deps", "--disable-pip",
                   "--format", "json", "--progress-spinner", "off"]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)


def undone(why: str) -> int:
    """Report an audit that could not be done; 1 where it is required."""
    print(f"audit: not done: {why}")
    return int(os.environ.get("PENSTOCK_REQUIRE_AUDIT") == "1")


def main() -> int:
    """Audit; 1 for a vulnerability in what Penstock needs that no note is on."""
    versions, missing = installed(asked())
    others: dict[str, Any] = {normal(each.name): each.version for each in metadata.distributions()}
    try:
        versions |= resolved(missing)
        done = ask({name: version for name, version in {**others, **versions}.items() if name != "penstock"})  # fmt: skip
    except subprocess.TimeoutExpired:
        return undone(f"the index did not answer within {SECONDS} s")
    found = verdict(done.stdout, versions)
    if found is None:
        return undone((done.stderr.strip().splitlines() or ["no answer"])[-1])
    failing = judged(found, notes())
    unknown = sorted(set(found.unknown) & versions.keys())
    print(f"audit: {len(versions) - len(unknown)} packages asked about, {len(found.ours)} findings, {len(failing)} to act on")  # fmt: skip
    if failing:
        return 1
    if unknown:
        return undone(f"the index gave no answer on {len(unknown)} of {len(versions)} packages, such as {unknown[0]}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
