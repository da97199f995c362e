"""Makes the golden directories: small stores written by the released RocketMQ stores, with what they say of them.

Run from the project's root: ``python -m tests.golden.make_java_golden``; needs a JDK and Maven.
"""

import json
import tarfile
import tempfile
from pathlib import Path

from tests.interop.javastore import VERSIONS, JavaStore, build, message
from tests.interop.test_interop import java_messages

HERE = Path(__file__).parent
SIZES = {"mappedFileSizeCommitLog": 32 * 1024}


def main() -> None:
    """Write one archive and one dump for each version, closed cleanly and killed."""
    for version in VERSIONS:
        for ending in ("clean", "killed"):
            with tempfile.TemporaryDirectory() as home, JavaStore(build(version)) as java:
                root = Path(home) / "store"
                java.open(root, SIZES)
                java.put(*java_messages(150))
                java.batch(
                    *[message("batched", b"b%d" % n, tag="b", keys=f"b{n}") for n in range(10)]
                )
                if version.startswith("5"):
                    java.put(message("l" * 140, b"long topic", keys="long"))
                dump = [{"topic": t, "queue": q, **queue} for (t, q), queue in java.dump().items()]
                if ending == "clean":
                    java.close()
                java.kill()
                name = f"java-{version}-{ending}"
                with tarfile.open(HERE / f"{name}.tar.gz", "w:gz") as archive:
                    archive.add(root, "store")
                (HERE / f"{name}.json").write_text(
                    json.dumps(dump, separators=(",", ":"), sort_keys=True)
                )


if __name__ == "__main__":
    main()
