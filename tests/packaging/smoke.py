"""Puts and reads with an installed Penstock; what every wheel of a release has to pass where it was built.

A script, not a test: it runs where nothing but the wheel and what it needs is installed.
"""

import pickle
import sys
import tempfile

import penstock
from penstock import _kernel


def main() -> int:
    """Return 0, having printed the file that the kernel was loaded from."""
    assert _kernel.__name__ == "penstock._kernel"
    assert pickle.loads(pickle.dumps(_kernel.abi)) is _kernel.abi
    bodies = [b"%d" % number for number in range(1000)]
    with tempfile.TemporaryDirectory() as folder:
        with penstock.open(folder, environ={}) as store:
            for body in bodies:
                store.put("smoke", body, queue=0)
        with penstock.open(folder, environ={}, read_only=True) as store:
            assert [message.body for message in store.scan("smoke", queue=0)] == bodies
    sys.stdout.write(f"{_kernel.__file__}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
