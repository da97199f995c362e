"""Spark that does not run in this process: a standalone cluster with two workers, and Spark Connect.

In both the workers' Python has what Penstock needs, but not Penstock: the wheel is shipped.
"""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import require

import penstock
from penstock import Message

COUNT = 3000
SIZES: dict[str, Any] = {"geometry.segment_bytes": 256 * 1024}
JOB = Path(__file__).parent / "elsewhere_job.py"


class Elsewhere:
    """What both kinds of Spark need: a bare Python, a wheel, a clean environment, a store."""

    def __init__(self, root: Path) -> None:
        from tests.spark import elsewhere, home  # noqa: PLC0415 - need pyspark

        for name in ("spark-home", "dist", "local"):
            (root / name).mkdir()
        self.root = root
        self.local = root / "local"
        self.python = elsewhere.make_bare_python(root / "bare")
        self.wheel = elsewhere.build_wheel(root / "dist")
        self.home = home.make_home(root / "spark-home")
        self.environ = elsewhere.clean_environment(self.home, self.python)
        self.store = root / "store"
        with penstock.open(self.store, environ={}, **SIZES) as store:
            store.put_many(
                [
                    Message(f"topic{n % 2}", b"body %d" % n, queue=n % 3, keys=[f"k{n}"])
                    for n in range(COUNT)
                ]
            )


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    require("pyspark")
    return Elsewhere(tmp_path_factory.mktemp("elsewhere"))


def check(report: dict[str, Any], where: Elsewhere) -> None:
    assert report["rows"] == COUNT
    assert report["topics"] == ["topic0", "topic1"]
    assert report["python"] == [str(where.python)]
    assert all("/penstock.zip/penstock/" in path for path in report["code"])
    assert "penstock.zip" in report["driver"]


def test_the_bare_python_has_no_penstock(elsewhere: Elsewhere) -> None:
    """Or the tests below would show nothing."""
    done = subprocess.run(
        [elsewhere.python, "-c", "import numpy, pyarrow, isal, crc32c, attrs, pluggy; import penstock"],
        env=elsewhere.environ, cwd=elsewhere.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "No module named 'penstock'" in done.stderr


def test_a_standalone_cluster_runs_it_all(elsewhere: Elsewhere) -> None:
    from tests.spark.elsewhere import Cluster, last_json, processes_of, run, settings  # noqa: PLC0415

    folder = elsewhere.root / "cluster"
    folder.mkdir()
    with Cluster(folder, elsewhere.environ) as cluster:
        output = run(
            [elsewhere.home / "bin" / "spark-submit", "--master", cluster.url,
             "--py-files", elsewhere.wheel, *settings(elsewhere.local),
             JOB, elsewhere.wheel, elsewhere.store, elsewhere.root / "from-cluster"],
            elsewhere.environ, elsewhere.root,
        )  # fmt: skip
    report = last_json(output)
    check(report, elsewhere)
    assert len(report["parent"]) == 2, "both workers took part"
    assert processes_of(elsewhere.python) == []


def test_spark_connect_runs_it_all(elsewhere: Elsewhere) -> None:
    require("grpc")
    from tests.spark.elsewhere import last_json, processes_of, run, settings  # noqa: PLC0415

    # What is said to Connect's builder reaches a server that is already there; its own start reads these.
    # Under SPARK_TESTING the server takes any port that is free.
    start = {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*settings(elsewhere.local), "pyspark-shell"]),
        "SPARK_TESTING": "1",
    }
    output = run(
        [elsewhere.python, JOB, elsewhere.wheel, elsewhere.store, elsewhere.root / "from-connect", "--connect"],
        elsewhere.environ | start, elsewhere.root,
    )  # fmt: skip
    check(last_json(output), elsewhere)
    assert processes_of(elsewhere.python) == []
