"""Describes the kind of this machine: no names, no paths."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from bench.engines import redis


def words() -> str:
    """Return processor, cores, memory, system and Python."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((f.split(":", 1)[1].strip() for f in facts if f.startswith("model name")), "")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        f"{model or platform.machine()}, {os.cpu_count()} cores, {round(pages / (1 << 30))} GiB, "
        f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def versions() -> dict[str, str]:
    """Return the versions of the measured packages."""
    names = ("numpy", "pyarrow", "lmdb", "rocksdict", "litequeue", "redis", "hiredis")
    found = {name: metadata.version(name) for name in names}
    server = redis.version()
    return found | ({"redis-server": server} if server else {})


def commit() -> str:
    """Return the measured commit, with a plus if there are changes; an empty string outside a repository."""
    root = Path(__file__).parents[1]
    output = []
    for arguments in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "-uno")):
        try:
            done = subprocess.run(
                ("git", *arguments), cwd=root, capture_output=True, text=True, check=False
            )
        except OSError:
            return ""
        if done.returncode:
            return ""
        output.append(done.stdout.strip())
    return output[0] + ("+" if output[1] else "")
