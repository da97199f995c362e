"""What the real RocketMQ stores answer under SYNC_FLUSH when their msync fails. Not a test: it is about Java.

Run from the project's root: ``python -m tests.interop.java_failed_sync``; needs strace, a JDK and Maven. The
outcome stands in docs/durability.md. strace counts the calls of each thread by itself, so ``when=3+`` spares the
first two of every thread; ``when=1+`` spares none.
"""

import shutil
import tempfile
from pathlib import Path

from tests.interop.javastore import (
    VERSIONS,
    JavaStore,
    JavaStoreError,
    build,
    message,
    missing_tools,
)

PUTS = 10


def run(version: str, fail_from: int) -> None:
    """Put ten messages while msync fails from each thread's nth call on, and show every answer."""
    with tempfile.TemporaryDirectory() as home:
        log, root = Path(home) / "strace.log", Path(home) / "store"
        inject = f"inject=msync:error=EIO:when={fail_from}+"
        strace = ("strace", "-f", "-qq", "-o", str(log), "-e", "trace=msync", "-e", inject)
        print(f"RocketMQ {version}: strace -f -e trace=msync -e {inject} java ...")
        with JavaStore(build(version), strace) as java:
            java.open(root, {"flushDiskType": "SYNC_FLUSH"})
            for number in range(PUTS):
                before = java.call("state")["flushed_where"]
                answer = java.put(message("t", b"%d" % number))[0]
                print(number, answer["status"], "ends", answer["log_offset"] + answer["size"],
                      "flushedWhere", before, "->", java.call("state")["flushed_where"])  # fmt: skip
            try:
                java.close()
                print("closed cleanly")
            except JavaStoreError as error:
                print("close:", error)
            print("abort marker is", "there" if (root / "abort").exists() else "gone")
        calls = [line for line in log.read_text().splitlines() if "msync(" in line]
        failed = sum("INJECTED" in line for line in calls)
        print(f"{failed} of {len(calls)} calls of msync failed\n")


def main() -> None:
    """Run it for each version, with the first sync good and with none."""
    missing = missing_tools() + ["strace"] * (shutil.which("strace") is None)
    if missing:
        print(f"nothing was run: this needs {', '.join(missing)}")
        return
    for version in VERSIONS:
        for fail_from in (3, 1):
            run(version, fail_from)


if __name__ == "__main__":
    main()
