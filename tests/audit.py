"""Asks whether what Penstock needs has known vulnerabilities: `python -m tests.audit`, part of `make check`.

A vulnerability fails. A tool that is not there or an index that cannot be reached is said, and does not:
the check must also run where there is no network.
"""

import json
import re
import subprocess
import sys
from importlib import metadata

NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(root: str = "penstock") -> set[str]:
    """Return everything installed that Penstock, with any of its extras for users, stands on."""
    found: set[str] = set()
    waiting = [root]
    while waiting:
        name = normal(waiting.pop())
        if name in found:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for line in requires:
            match = NAME.match(line)
            if match and (name == normal(root) or "extra ==" not in line) and "dev" not in line:
                waiting.append(match[0])
    return found - {normal(root)}


def verdict(report: str, ours: set[str]) -> tuple[list[str], list[str]] | None:
    """Return what is wrong with ours, and with others, of pip-audit's JSON; None if it is none."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    wrong: list[str] = []
    others: list[str] = []
    for each in packages:
        for hole in each.get("vulns", []):
            fixed = ", ".join(hole.get("fix_versions", [])) or "none yet"
            line = f"{each['name']} {each['version']}: {hole['id']}, fixed in {fixed}"
            (wrong if normal(each["name"]) in ours else others).append(line)
    return wrong, others


def main() -> int:
    """Audit the environment; 1 for a vulnerability in what Penstock needs."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--skip-editable", "--progress-spinner", "off"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        print("audit: not done, the index did not answer within 120 s")
        return 0
    found = verdict(done.stdout, needed())
    if found is None:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"audit: not done: {last}")
        return 0
    for line in found[1]:
        print(f"audit: in a tool, not in what Penstock needs: {line}")
    for line in found[0]:
        print(f"audit: {line}")
    print(f"audit: {len(found[0])} known vulnerabilities in what Penstock needs")
    return 1 if found[0] else 0


if __name__ == "__main__":
    sys.exit(main())
