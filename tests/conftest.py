"""Fixtures shared by every test."""

import importlib
import itertools
import json
import logging
import shutil
import signal
import sys
import tarfile
import tempfile
import textwrap
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unstable import RetryAlone

import penstock
from penstock import Receipt, StoredMessage
from penstock._kernel import Batch
from penstock.format.record import RecordFields, encode_record
from penstock.store.store import Store
from penstock.testing import SimulatedDisk
from penstock.testing.platter import Survival
from penstock_tools.matrix.measure import counts_writes
from penstock_tools.matrix.report import file_system
from tests import lanes

# A job in the background ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

InstallPlugin = Callable[[str, str], None]
OpenStore = Callable[..., Store]
Listen = Callable[[str, str, Callable[[Any], object]], None]

# File systems that write pages, and little besides, where pages were changed.
COUNTED = ("ext4", "xfs")


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar file that is ours."""
    with tarfile.open(archive) as packed:
        # CPython 3.11.0 to 3.11.3 have no filters; from 3.12 to 3.13 none is a warning.
        filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        packed.extractall(target, **filtered)  # type: ignore[arg-type] # no one type for all its keywords


# Small files, so that logs, queues and index roll within a test.
SMALL = {
    "geometry.segment_bytes": 64 * 1024,
    "geometry.queue_entries": 200,
    "geometry.index_slots": 100,
    "geometry.index_entries": 400,
}


def make_restarted(root: Path, topic: str, **settings: Any) -> Path:
    """Make a store in which a broker has deleted a topic of one queue and made it again, from queue offset 0 on."""
    # As a broker's records are.
    given: dict[str, Any] = {**SMALL, "log.checksum": "crc32", "retention.use": [], **settings}
    for round_ in range(2):
        with penstock.open(root, environ={}, **given) as store:
            for number in range(40):
                store.put(topic, b"%d of life %d" % (number, round_), queue=0)
            store.put("kept", b"life %d" % round_, queue=0)
        if not round_:
            listed = root / "config" / "topics.json"
            listed.parent.mkdir(exist_ok=True)
            listed.write_text(json.dumps({"topicConfigTable": {"kept": {"topicName": "kept"}}}))
            shutil.rmtree(root / "consumequeue" / topic)
            shutil.rmtree(root / "penstock")
    return root


def power_cut(disk: SimulatedDisk) -> SimulatedDisk:
    """Return what a power cut leaves of a disk: nothing of what was not synced."""
    return SimulatedDisk.after(disk.image(), Survival.NONE, Random(0))


def messages_in(store: Store, topic: str, **options: Any) -> list[StoredMessage]:
    """Return the messages of a topic; none if the store does not have it, as after a crash before its first message."""
    queues = store.topics(system=True).get(topic, [])
    return (
        [*store.scan(topic, **options)]
        if queues and options.get("queue") in (None, *queues)
        else []
    )


def append_records(store: Store, *records: RecordFields) -> list[Receipt]:
    """Append records as they are, as a broker may have written them and no caller, in one batch."""
    # Every public way in makes the record itself.
    engine = store._engine
    assert engine is not None
    batch = Batch(engine.log.encoder)
    for fields in records:
        cursor = engine.cursors.of(fields.topic.decode(), fields.queue)
        batch.add_record(cursor, encode_record(fields), has_crc=False)
    time_ms = engine.log.append_batch(batch)
    return list(batch.receipts(time_ms, *engine.apply_policy(batch.end_offset, wait=False)))


def append_record(
    store: Store, topic: str, body: bytes, properties: bytes, *, sys_flag: int = 0
) -> Receipt:
    """Append one record with whatever properties text and bits."""
    fields = RecordFields(topic=topic.encode(), body=body, properties=properties, sys_flag=sys_flag)
    return append_records(store, fields)[0]


@pytest.fixture
def counted_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a real disk, whose written bytes the system counts; the test skips where there is none."""
    tried = []
    for folder in (tmp_path, Path("/var/tmp"), Path(__file__).parents[1]):
        kind, device = file_system(folder.resolve())
        tried.append(f"{folder}: {kind}")
        if kind in COUNTED and counts_writes(folder):
            print(f"measured on {kind}, {device}")
            with tempfile.TemporaryDirectory(prefix="penstock-", dir=folder) as home:
                yield Path(home)
            return
    lanes.need(
        f"no {' or '.join(COUNTED)} whose written bytes are counted ({', '.join(tried)})", "DISK"
    )


@pytest.fixture(scope="session")
def browser() -> str:
    """Return the path of a Chromium; skips, or fails in CI, where there is none."""
    return shutil.which("chromium-browser") or lanes.need_program("chromium", "CHROMIUM")


# Tests that start Spark on their own, or none, need not wait for those that share one session.
_WITHOUT_SHARED_SPARK = frozenset(
    f"tests/spark/test_{name}.py"
    for name in (
        "durable_names",
        "options",
        "remote",
        "shards",
        "sink_crashes",
        "sink_protocol",
        "start_offsets",
        "stream_state",
    )
)
# Tests that start brokers; the others in their folder start RocketMQ's store classes alone.
_WITH_BROKERS = frozenset(
    f"tests/interop/test_{name}.py"
    for name in ("broker_copies", "foreign", "prepared", "takeover", "timers")
)


def _scope(file: str) -> str:
    """Return what names the files that run in one worker, because they share what takes long to start."""
    if (
        file.startswith(("tests/spark/", "tests/night/spark/"))
        and file not in _WITHOUT_SHARED_SPARK
    ):
        return "tests/spark"
    if file.startswith("tests/interop/"):
        return "tests/interop, brokers" if file in _WITH_BROKERS else "tests/interop, stores"
    return "tests/night/brokers" if file.startswith("tests/night/brokers/") else file


# What takes longest begins first, so that no worker is left with it at the end.
_FIRST = (
    "spark",
    "interop",
    "crash",
    "examples",
    "damage",
    "property",
    "plants",
    "golden",
    "faults",
)


# What a folder's tests need, as a marker: see `markers` in pyproject.toml.
_MARKERS = {
    "spark": "spark",
    "interop": "java",
    "brokers": "java",
    "crash": "kill",
    "night": "night",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of some folders, leave out what only the night runs, and put the folders with the longest tests first."""
    place = {name: at for at, name in enumerate(_FIRST)}
    for item in items:
        for folder in _parts(item):
            if folder in _MARKERS:
                item.add_marker(_MARKERS[folder])
    if not lanes.NIGHT:
        chosen = list(_sampled([item for item in items if not item.get_closest_marker("night")]))
        config.hook.pytest_deselected(items=list({*items} - {*chosen}))
        items[:] = chosen
    items.sort(key=lambda item: place.get(_folder(item), len(_FIRST)))


def _sampled(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield all, but of tests that are marked `sampled(n)` one of each n neighbouring variants, the same ones in each run."""
    tests = itertools.groupby(items, lambda item: item.nodeid.partition("[")[0])
    for name, variants in tests:
        found = list(variants)
        marker = found[0].get_closest_marker("sampled")
        if marker is not None and len(found) > 1:
            found = lanes.cases(found, name, of_so_many=marker.args[0])
        yield from found


def _parts(item: pytest.Item) -> list[str]:
    return item.nodeid.partition("::")[0].split("/")[:-1]


def _folder(item: pytest.Item) -> str:
    return _parts(item)[1]


# Folders whose tests must end the threads of every store that they open, unless they fail.
_WITHOUT_THREADS = ("unit", "contract")
_HAS_FAILED = pytest.StashKey[bool]()
# A thread that ends needs a processor; one that does not end has for ever.
_ENDING_S = 30


class _FailuresAtOnce:
    """Says which test has failed when it has, not only at the end: a run may be stopped before."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # It is registered after this plugin.
        terminal: Any = self._plugins.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when})")
            terminal.write_line(report.longreprtext[-2000:])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `.ci/run`."""
    parser.addoption(
        "--retry-alone", action="store_true", help="give failed tests one more try, each alone"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell failures at once where the tests run in several processes, and try them again if asked to."""
    if getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(_FailuresAtOnce(config))
        if config.getoption("retry_alone"):
            config.pluginmanager.register(RetryAlone(config))


def pytest_report_header() -> str:
    """Say what repeats this run."""
    night = "PENSTOCK_NIGHT=1 " if lanes.NIGHT else ""
    return f"repeat with: {night}PENSTOCK_SEED={lanes.SEED}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note whether a test has failed, for its fixtures."""
    report = yield
    if report.when == "call":
        item.stash[_HAS_FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def _ends_its_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a store's thread behind; those of a module's fixtures are there before it."""
    before = set(threading.enumerate())
    yield
    has_failed = request.node.stash.get(_HAS_FAILED, False)
    if _folder(request.node) in _WITHOUT_THREADS and not has_failed:
        new = [thread for thread in threading.enumerate() if thread not in before]
        left = [thread for thread in new if thread.name.startswith("penstock-")]
        for thread in left:
            thread.join(_ENDING_S)
        names = [thread.name for thread in left if thread.is_alive()]
        assert not names, f"close the store by `with`: {names} still run"


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Keep the log that `caplog` captures plain text.

    pytest adds its handler to every logger that does not propagate, and PySpark's loggers, which are such
    once a Spark test has run in the process, set a formatter of JSON on each handler that they are given.
    """
    log = pyfuncitem.funcargs.get("caplog")
    if isinstance(log, pytest.LogCaptureFixture):
        log.handler.setFormatter(logging.Formatter())
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `--dist loadfile`, take all files that share a Spark session or JVMs as one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only with pytest-xdist

    class ByScope(LoadFileScheduling):  # type: ignore[misc] # untyped where it is not installed
        # What xdist gives to override; it has no public name.
        def _split_scope(self, nodeid: str) -> str:
            return _scope(super()._split_scope(nodeid))

        def remove_node(self, node: Any) -> Any:
            """Run neither again what has ended a worker, which may end each, nor what is done: a worker that gets no test waits for ever."""
            work = self.assigned_work.get(node, {})
            left = [
                test for tests in work.values() for test, is_done in tests.items() if not is_done
            ]
            for scope, tests in [*work.items()]:
                tests.update((test, True) for test in left[:1] if test in tests)
                if all(tests.values()):
                    del work[scope]
            super().remove_node(node)
            return left[0] if left else None

    # In the order that `pytest_collection_modifyitems` made, not by how many tests a file has.
    config.option.loadscopereorder = False
    return ByScope(config, log)


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """Return a function that 'installs' a plugin distribution from its source text."""
    site = tmp_path / "site"

    def install(distribution: str, source: str) -> None:
        module = distribution.replace("-", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[penstock]\n{module} = {module}\n")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


@pytest.fixture
def listen(install_plugin: InstallPlugin) -> Listen:
    """Return a function that has a test's function called at an event, as a plugin's hook; of the facts the first is passed."""

    def add(event: str, fact: str, hear: Callable[[Any], object]) -> None:
        name = f"penstock_hears_{event}"
        install_plugin(name, f"""
            from penstock import hookimpl
            heard = []
            @hookimpl
            def {event}({fact}):
                for each in heard:
                    each({fact})
        """)  # fmt: skip
        importlib.import_module(name).heard.append(hear)

    return add


@pytest.fixture
def quiet() -> Iterator[None]:
    """Log nothing: explorations open thousands of stores, and each says what it recovered."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def open_small(tmp_path: Path) -> OpenStore:
    """Return a function that opens the test's store with small files."""

    def open_it(**settings: Any) -> Store:
        path = settings.pop("path", tmp_path / "store")
        return penstock.open(path, environ={}, **{**SMALL, **settings})

    return open_it
