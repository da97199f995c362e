"""What the real RocketMQ 5.3.3 store answers under SYNC_FLUSH when its msync fails. Not a test: it is about Java.

Run from the project's root: ``python -m tests.interop.java_failed_sync``; needs strace, a JDK and Maven. The
outcome stands in docs/durability.md.
"""

import tempfile
from pathlib import Path

from tests.interop.conftest import CACHE
from tests.interop.javastore import JavaStore, build, message

PUTS = 10
FAIL_FROM = 3
STRACE = ("strace", "-f", "-qq", "-o")
INJECT = ("-e", "trace=msync", "-e", f"inject=msync:error=EIO:when={FAIL_FROM}+")


def main() -> None:
    """Put ten messages while every msync from the third on fails."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "strace.log"
        with JavaStore(build("5.3.3", CACHE), (*STRACE, str(log), *INJECT)) as java:
            java.open(Path(home) / "store", {"flushDiskType": "SYNC_FLUSH"})
            for number in range(PUTS):
                answer = java.put(message("t", b"%d" % number))[0]
                state = java.call("state")
                print(number, answer["status"], "ends", answer["log_offset"] + answer["size"],
                      "flushedWhere", state["flushed_where"])  # fmt: skip
        failed = sum("INJECTED" in line for line in log.read_text().splitlines())
        print(f"{failed} calls of msync failed")


if __name__ == "__main__":
    main()
