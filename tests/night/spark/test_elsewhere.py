"""Spark that does not run in this process: a standalone cluster with two workers, and Spark Connect.

On the cluster the workers' Python has what Penstock needs, but not Penstock: Spark unpacks the wheel for them. The server of
Connect has it installed.
"""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.night.spark.elsewhere import (
    Cluster,
    build_wheel,
    clean_environment,
    install,
    last_json,
    make_bare_python,
    processes_of,
    run,
    settings,
)
from tests.spark.conftest import require

import penstock
from penstock import Message

COUNT = 3000
SIZES: dict[str, Any] = {"geometry.segment_bytes": 256 * 1024}
JOB = Path(__file__).parent / "elsewhere_job.py"


class Elsewhere:
    """What both kinds of Spark need: a bare Python, one with the wheel, a clean environment, a store."""

    def __init__(self, root: Path) -> None:
        from tests.spark.home import make_home  # noqa: PLC0415 - needs pyspark

        for name in ("spark-home", "dist", "local"):
            (root / name).mkdir()
        self.root = root
        self.local = root / "local"
        self.python = make_bare_python(root / "bare")
        self.wheel = build_wheel(root / "dist")
        self.driver = make_bare_python(root / "driver")
        install(self.wheel, self.driver)
        self.home = make_home(root / "spark-home")
        self.environ = clean_environment(self.home, self.driver, self.python)
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


def check(report: dict[str, Any], where: Elsewhere, target: Path) -> None:
    assert report["counts"] == {"topic0": COUNT // 2, "topic1": COUNT // 2}
    made = sorted(path for path in target.iterdir() if path.name != "checkpoint")
    stores = 1 + len(made)
    assert (report["stores"], report["records"], report["findings"]) == (stores, stores * COUNT, [])
    for path in made:
        assert contents(path) == contents(where.store), path.name


def contents(root: Path) -> list[tuple[str, int, bytes, tuple[str, ...]]]:
    """Return every message of a store, queue by queue in its order."""
    with penstock.open(root, read_only=True) as store:
        return [
            (topic, queue, message.body, tuple(message.keys))
            for topic, queues in sorted(store.topics().items())
            for queue in sorted(queues)
            for message in store.scan(topic, queue=queue)
        ]


def test_the_bare_python_has_no_penstock(elsewhere: Elsewhere) -> None:
    """Or the tests below would show nothing."""
    done = subprocess.run(
        [elsewhere.python, "-c", "import numpy, pyarrow, crc32c, attrs, pluggy; import penstock"],
        env=elsewhere.environ, cwd=elsewhere.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "No module named 'penstock'" in done.stderr


def test_a_standalone_cluster_runs_it_all(elsewhere: Elsewhere) -> None:
    folder, target = elsewhere.root / "cluster", elsewhere.root / "from-cluster"
    folder.mkdir()
    with Cluster(folder, elsewhere.environ) as cluster:
        output = run(
            [elsewhere.home / "bin" / "spark-submit", "--master", cluster.url,
             "--archives", f"{elsewhere.wheel}#shipped", "--conf", "spark.executorEnv.PYTHONPATH=shipped",
             *settings(elsewhere.local), JOB, elsewhere.store, target, "--stream"],
            elsewhere.environ, elsewhere.root,
        )  # fmt: skip
    report = last_json(output)
    check(report, elsewhere, target)
    assert len(report["parent"]) == 2, "both workers took part"
    assert report["python"] == [str(elsewhere.python)]
    assert all(path.startswith(f"{folder}/worker") for path in report["code"])
    assert processes_of(elsewhere.python) == []


def test_spark_connect_runs_it_all(elsewhere: Elsewhere) -> None:
    require("grpc")
    target = elsewhere.root / "from-connect"
    # What is said to Connect's builder reaches a server that is already there; its own start reads these.
    # Under SPARK_TESTING the server takes any port that is free.
    start = {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*settings(elsewhere.local), "pyspark-shell"]),
        "SPARK_TESTING": "1",
    }
    output = run(
        [elsewhere.driver, JOB, elsewhere.store, target, "--connect"],
        elsewhere.environ | start | {"PYSPARK_PYTHON": str(elsewhere.driver)}, elsewhere.root,
    )  # fmt: skip
    check(last_json(output), elsewhere, target)
    assert processes_of(elsewhere.driver) == []
