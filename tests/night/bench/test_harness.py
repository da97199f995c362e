"""The benchmarks' own harness, with sizes so small that its figures mean nothing: that it asks everything of every engine,
keeps what it is told, and judges it rightly. Nothing here depends on how fast anything is."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest
from bench import before, history, measure, page, results, rocketmq
from bench.engines import ENGINES, redis
from bench.goals import GOALS, Goal, Outcome, judge, table
from bench.measure import Bench, Session, Work, on_device
from bench.pictures import draw
from bench.process import EngineError, EngineProcess
from bench.supply import Supply, key_of, make_bodies
from bench.workloads import consumers, lives, puts, reads, tails

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# The engines of each command that consumes.
CONSUMING = {"consume": consumers.DURABLE_ENGINES, "consume_each": consumers.EACH_ENGINES}
# One of each kind that takes messages, without and with sync.
EVERY = [
    f"{kind}{sync}"
    for kind in ("penstock", "sqlite", "lmdb", "rocksdb", "plain")
    for sync in ("", "-sync")
]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A run of one round over a few messages, without Java."""
    monkeypatch.setattr(rocketmq, "missing", lambda: "not for this test")
    return Bench(tmp_path, rounds=1, full=False, scale=0.0001)


def made_up() -> results.Result:
    """A run with figures for everything: ours always takes 1, any other 2."""
    figures: dict[str, dict[str, list[float]]] = {}
    for goal in GOALS:
        for value, figure in ((1.0, goal.ours), (2.0, goal.other), (0.5, goal.bare)):
            if figure is not None:
                work, engine = figure
                figures.setdefault(work.replace("*", "1,000 keys"), {})[engine] = [value] * 3
        if goal.ours[1] == "penstock-sync":
            figures[on_device(goal.ours[0])] = {"penstock-sync": [4096.0]}
    bench = Bench.__new__(Bench)
    bench.full, bench.rounds, bench.missing, bench.figures = True, 3, {}, figures
    bench.commit = ""
    bench.units = dict.fromkeys(figures, "ns a message")
    part = {"50": 1.0, "90": 2.0, "99": 3.0, "99.9": 4.0, "99.99": 5.0, "100": 6.0}
    bench.latencies = {"latency of a put, 128 B": {"penstock": [part], "rocketmq": [part]}}
    return results.of(bench, judge(figures, {}))


class FakeProcess:
    """Answers every command at once, in the right shape."""

    # What members of a group have left to consume.
    supplied = 0

    def __init__(self, name: str, variables: object = None) -> None:
        self.name = name
        self.filled = 0

    def call(self, do: str, **facts: Any) -> dict[str, Any]:
        if do == "fill":
            self.filled = facts["count"]
        if do == "supply":
            FakeProcess.supplied = facts["count"]
        if do == "consume_together":
            seen, FakeProcess.supplied = FakeProcess.supplied, 0
            return {"count": seen, "ended_ns": facts["at_ns"] + 1000}
        if do in ("lag", "follow", "hand") or facts.get("each"):
            return {"latency": dict.fromkeys(("50", "90", "99", "99.9", "99.99", "100"), 1000)}
        return {
            "ns": 1000,
            "acked_ns": 900,
            "count": facts.get("count", 1),
            "own_kib": 1,
            "is_there": True,
            **facts,
        }

    def open(self, root: Path, bodies: Path, number: int = 0, **facts: Any) -> dict[str, Any]:
        root.mkdir(exist_ok=True)
        (root / "file").write_bytes(bytes(2 << 20) + b"end")
        self.filled = number
        return {"ns": 1000, "count": 1}

    def send(self, do: str, **facts: Any) -> None:
        self.sent = {"do": do, **facts}

    def receive(self) -> dict[str, Any]:
        return self.call(**self.sent)

    def device_bytes(self) -> int | None:
        return 0

    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


class Forgetful(FakeProcess):
    """Has lost a message when it was killed."""

    def call(self, do: str, **facts: Any) -> dict[str, Any]:
        return {"count": self.filled - 1} if do == "total" else super().call(do, **facts)


def test_every_goal_is_measured_by_some_workload(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sound(FakeProcess):
        def call(self, do: str, **facts: Any) -> dict[str, Any]:
            return {"count": self.filled} if do == "total" else super().call(do, **facts)

    for module in (measure, tails):
        monkeypatch.setattr(module, "EngineProcess", Sound)
    small.missing.clear()
    for workload in (puts, reads, lives, tails, consumers):
        workload.run(small)
    assert [o.goal for o in judge(small.figures, {}) if o.median is None] == []
    small.missing["rocketmq"] = "not there"
    for found in small.figures.values():
        found.pop("rocketmq", None)
    unknown = [o for o in judge(small.figures, small.missing) if o.median is None]
    assert {o.why for o in unknown} == {"not there"}
    assert "not measured: not there" in table(unknown)


def test_what_an_engine_fails_at_costs_only_that(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(FakeProcess):
        def call(self, do: str, **facts: Any) -> dict[str, Any]:
            if self.name == "penstock" and do == "put_many":
                raise EngineError("penstock: it broke\nin two lines")
            return super().call(do, **facts)

    monkeypatch.setattr(measure, "EngineProcess", Failing)
    puts.run(small)
    assert "penstock" not in small.figures["put_many 1000 x 128 B"]
    assert len(small.figures["put_many 1000 x 128 B"]["lmdb"]) == 1
    assert len(small.figures["put 128 B"]["penstock"]) == 1
    judged = {o.goal.work: o.why for o in judge(small.figures, small.missing)}
    assert judged["put_many of 1,000, 128 B"] == "penstock: it broke"


def test_a_store_that_lost_messages_to_a_kill_ends_the_run(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "EngineProcess", Forgetful)
    with pytest.raises(EngineError, match="recovered"):
        lives.run(small)


def test_penstock_does_every_command(tmp_path: Path) -> None:
    make_bodies(tmp_path / "bodies")
    with EngineProcess("penstock-index") as ours, EngineProcess("penstock-index") as follower:
        ours.open(tmp_path / "store", tmp_path / "bodies")
        assert ours.call("put", count=40, size=128, threads=4)["count"] == 40
        assert ours.call("put", count=10, size=128, each=True)["latency"]["50"] > 0
        assert ours.call("put_arrow", count=40, size=128, batch=20)["count"] == 40
        assert ours.call("fill", count=30, size=128)["count"] == 120
        assert ours.call("total")["count"] == 120
        for do in ("read", "decode"):
            assert ours.call(do, limit=7, count=1000)["count"] == 120
        assert ours.call("to_arrow")["count"] == 120
        assert ours.call("find", count=5, seed=1)["count"] == 5
        assert ours.call("offset_at", count=5, seed=1)["count"] == 5
        assert ours.call("queues", count=3, size=128)["count"] == 3
        assert ours.call("lag", count=2, size=128)["latency"]["100"] > 0
        assert ours.call("stall", count=20, size=128)["ns"] > 0
        assert ours.call("memory")["own_kib"] > 0
        follower.call("watch", root=str(tmp_path / "store"))
        follower.send("follow", count=3)
        ours.call("beat", count=10, pause_ms=1)
        assert follower.receive()["latency"]["50"] > 0
        assert ours.call("close")["ns"] > 0


def test_every_engine_does_the_work(small: Bench) -> None:
    facts = {"count": 40, "size": 128}
    works = [
        Work(name="put", do="put", engines=EVERY, facts=facts),
        Work(name="put_many", do="put_many", engines=EVERY, facts={**facts, "batch": 20}),
    ]
    readers = [name for name in EVERY if ENGINES[name].kind != "plain" and "sync" not in name]
    works.append(Work(name="read", do="read", engines=readers, facts={"limit": 7, "count": 50}))
    small.scale = 1.0
    small.write_back = lambda: None  # type: ignore[method-assign] # other tests would wait for it
    with Session(small, "all", EVERY) as session:
        session.run(works)
    for name, engines in (("put", EVERY), ("put_many", EVERY), ("read", readers)):
        assert sorted(small.figures[name]) == sorted(engines)
        assert all(len(values) == small.rounds for values in small.figures[name].values())


QUEUES = (
    "consumer",
    "sqlite-queue",
    "sqlite-queue-delete",
    "litequeue",
    "redis-always",
    "redis-everysec",
)


@pytest.mark.parametrize("name", QUEUES)
def test_every_queue_hands_out_all_messages_and_keeps_none(tmp_path: Path, name: str) -> None:
    _skip_without(name)
    make_bodies(tmp_path / "bodies")
    kinds = [do for do, names in CONSUMING.items() if name in names]
    assert kinds
    with EngineProcess(name) as process:
        process.open(tmp_path / "store", tmp_path / "bodies")
        for do in kinds * 2:
            process.call("supply", count=50, size=128)
            assert process.call(do, count=50, size=128, batch=20)["count"] == 50
            # Nothing was left to be handed out again.
            process.call("supply", count=7, size=128)
            assert process.call(do, count=7, size=128, batch=20)["count"] == 7


@pytest.mark.parametrize("name", consumers.HAND_ENGINES)
def test_messages_reach_a_consumer_of_both_processes(tmp_path: Path, name: str) -> None:
    _skip_without(name)
    make_bodies(tmp_path / "bodies")
    with EngineProcess(name) as writer, EngineProcess(name) as other:
        writer.open(tmp_path / "store", tmp_path / "bodies")
        writer.call("supply", count=5, size=128)
        assert writer.call("hand", count=3, pause_ms=1)["latency"]["50"] > 0
        other.call("watch", root=str(tmp_path / "store"))
        other.send("follow", count=3)
        writer.call("beat", count=3, pause_ms=1)
        assert other.receive()["latency"]["100"] > 0


@pytest.mark.parametrize("in_processes", [False, True])
@pytest.mark.parametrize("name", consumers.DURABLE_ENGINES)
def test_the_members_of_a_group_share_all_messages(
    small: Bench, name: str, in_processes: bool
) -> None:
    _skip_without(name)
    small.scale = 0.05
    with consumers.Group(small, name, small.home / name, in_processes=in_processes) as group:
        assert group.consume(400, 128) > 0
        small.scale = 1e-9
        assert group.consume(30, 128) > 0


def test_a_message_that_no_member_got_ends_the_turn(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "EngineProcess", FakeProcess)
    with consumers.Group(small, "consumer", small.home / "group", in_processes=True) as group:
        monkeypatch.setattr(FakeProcess, "call", lambda *_, **__: {"count": 1, "ended_ns": 1})
        with pytest.raises(EngineError, match="4 of 30 messages came"):
            group.consume(30, 128)


def _skip_without(name: str) -> None:
    if ENGINES[name].kind == "redis" and redis.missing():
        if os.environ.get("PENSTOCK_REQUIRE_REDIS") == "1":
            pytest.fail(redis.missing())
        pytest.skip(redis.missing())


def test_without_redis_the_rest_is_measured_and_the_reason_is_said(
    small: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install redis-server" in redis.missing()
    assert redis.version() == ""
    again = Bench(tmp_path, rounds=1, full=False, scale=0.0001)
    assert "redis is not measured: needs redis-server" in capsys.readouterr().err
    monkeypatch.setattr(measure, "EngineProcess", FakeProcess)
    consumers.run(again)
    assert sorted(again.figures[f"{consumers.EACH}, 128 B"]) == ["consumer", "litequeue"]
    judged = {(o.goal.work, o.goal.against): o for o in judge(again.figures, again.missing)}
    unknown = judged["consumed, 100 acks on disk at a time, 128 B", "redis, appendfsync always"]
    assert "apt-get install redis-server" in unknown.why


def test_a_redis_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    _skip_without("redis-always")
    make_bodies(tmp_path / "bodies")
    for end in ("close", "kill"):
        with EngineProcess("redis-always") as process:
            process.open(tmp_path / end, tmp_path / "bodies")
            path = (tmp_path / end / "socket").read_text()
            assert _answers(path)
            if end == "kill":
                process.kill()
        until = time.monotonic() + 30
        while _answers(path):
            assert time.monotonic() < until
            time.sleep(0.01)


def _answers(path: str) -> bool:
    """Return whether a server accepts connections at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as there:
        return there.connect_ex(path) == 0


def test_another_commit_runs_on_its_own_packages(tmp_path: Path) -> None:
    """Without its variables, the figures would be those of this commit, and every ratio 1."""
    folder = tmp_path / "commit-abc"
    shutil.copytree(ROOT / "core" / "penstock", folder / "core" / "penstock")
    shutil.copytree(ROOT / "plugins", folder / "plugins")
    variables = before.environment("abc", tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", "import penstock, penstock_index; print(penstock.__file__, penstock_index.__file__)"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(path.startswith(str(folder)) for path in found)
    make_bodies(tmp_path / "bodies")
    with EngineProcess("penstock-before", variables) as process:
        process.open(tmp_path / "store", tmp_path / "bodies")
        assert process.call("put", count=40, size=128)["count"] == 40


def test_a_commit_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(before.NoCommitError, match="--before COMMIT"):
        before.build("", tmp_path)
    with pytest.raises(before.NoCommitError, match="git rev-parse"):
        before.build("no-such-commit", tmp_path)
    (tmp_path / "file").touch()
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_what_an_engine_cannot_do_is_an_error_that_names_it(tmp_path: Path) -> None:
    make_bodies(tmp_path / "bodies")
    with EngineProcess("plain") as process:
        process.open(tmp_path / "s", tmp_path / "bodies")
        with pytest.raises(EngineError, match="plain: NotImplementedError"):
            process.call("read", limit=1, count=1)
        process.kill()
        with pytest.raises(EngineError, match="plain ended"):
            process.call("put", count=1, size=1)


def test_a_process_that_stands_still_goes_on_when_it_is_asked(tmp_path: Path) -> None:
    make_bodies(tmp_path / "bodies")
    with EngineProcess("plain") as process:
        process.open(tmp_path / "s", tmp_path / "bodies")
        process.pause()
        assert process.call("put", count=2, size=8)["count"] == 2


def test_messages_are_the_same_in_every_run(tmp_path: Path) -> None:
    make_bodies(tmp_path / "bodies")
    first, second = (Supply(tmp_path / "bodies") for _ in range(2))
    assert first.rows(5, 32) == second.rows(5, 32)
    assert first.rows(1, 32)[0][1] == key_of(5) == "key-000000000005"


def test_a_ratio_is_taken_within_a_round() -> None:
    goal = GOALS[0]
    assert goal.other is not None
    # The machine was ten times slower in the second round; the ratios are 2, 3, 4.
    figures = {goal.ours[0]: {goal.ours[1]: [1.0, 10.0, 1.0], goal.other[1]: [2.0, 30.0, 4.0]}}
    outcome = judge(figures, {})[0]
    assert (outcome.median, outcome.low, outcome.high) == (3.0, 2.0, 4.0)
    assert outcome.is_met == (goal.least <= 3.0)


@pytest.mark.parametrize(("median", "met"), [(199.0, True), (200.0, True), (201.0, False)])
def test_a_limit_is_met_from_below(median: float, met: bool) -> None:
    goal = Goal(work="memory", against="at most", ours=("m", "penstock"), other=None, least=200)
    assert Outcome(goal=goal, median=median).is_met == met


def test_a_missed_goal_is_said() -> None:
    result = made_up()
    missed = [goal["work"] for goal in result["goals"] if goal["verdict"] == "MISSED"]
    # Twice as fast is not enough for these.
    assert "close of a busy store" in missed
    assert "put to seen by a follower in another process" not in missed
    must = [
        goal["work"] for goal in result["goals"] if goal["verdict"] == "MISSED" and goal["must"]
    ]
    said = table(judge(result["figures"], {}))
    assert f", {len(must)} missed" in said
    assert f", {len(missed) - len(must)} missed" in said


def test_each_goal_stands_beside_what_it_is_without_the_record_crc() -> None:
    goals = {goal["work"]: goal for goal in made_up()["goals"]}
    assert goals["put 128 B, until queues have it"]["bare"] == 4.0
    assert goals["sync put, 1 KiB, 16 threads"]["device_bytes"] == 4096.0
    assert goals["put 128 B, until queues have it"]["device_bytes"] is None


def test_a_run_is_kept_and_a_slowdown_shows(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    assert "no run was recorded" in history.trend(history.read(file))
    result = made_up()
    history.keep(result, file)
    slower = json.loads(json.dumps(result))
    slower["goals"][0] |= {"median": 1.1, "low": 1.0, "high": 1.2}
    history.keep(slower, file)
    lines = history.read(file)
    assert [line["date"] for line in lines] == [result["date"]] * 2
    marked = [row for row in history.trend(lines).splitlines() if row.endswith("SLOWER")]
    assert len(marked) == 1
    assert marked[0].startswith(result["goals"][0]["work"])
    elsewhere = {**lines[0], "machine": "another one"}
    assert "SLOWER" not in history.trend([*lines[:1], elsewhere])


def test_the_page_is_made_from_a_run(tmp_path: Path) -> None:
    results.save(made_up(), tmp_path / "run.json")
    result = results.load(tmp_path / "run.json")
    filled = page.filled((DOCS / "performance.md").read_text(), result)
    assert (
        "| **close of a busy store** | RocketMQ shutdown | 2 (2-2) | 100 | **missed** | 4 |  |"
        in filled
    )
    assert "| open 1 GiB after a clean close | 1 ms |" in filled
    assert page.filled(filled, result) == filled
    assert filled.index("<!-- bench wins -->") < filled.index("<!-- bench goals -->")
    assert "| close of a busy store | RocketMQ shutdown | **2** (2-2) |" in filled
    readme = page.filled((DOCS.parent / "README.md").read_text(), result, page.README_PARTS)
    assert "comparisons." in readme
    with pytest.raises(ValueError, match="no markers for"):
        page.filled("an empty page", result)
    assert {path.name for path in draw(result, tmp_path)} >= {
        "performance-goals.svg", "performance-sizes.svg", "performance-latency.svg",
    }  # fmt: skip
    drawn = (tmp_path / "performance-goals.svg").read_text()
    assert drawn.count("prefers-color-scheme: dark") == 1
    assert drawn.index("<style>") < drawn.index("<defs>")


def test_the_real_store_does_the_work(tmp_path: Path) -> None:
    if rocketmq.missing():
        if os.environ.get("PENSTOCK_REQUIRE_INTEROP") == "1":
            pytest.fail(rocketmq.missing())
        pytest.skip(rocketmq.missing())
    make_bodies(tmp_path / "bodies")
    with EngineProcess("rocketmq-index") as java:
        java.open(tmp_path / "store", tmp_path / "bodies")
        assert java.call("put", count=40, size=128, threads=4)["count"] == 40
        assert java.call("put", count=10, size=128, each=True)["latency"]["50"] > 0
        assert java.call("put_many", count=40, size=128, batch=20)["count"] == 40
        assert java.call("fill", count=30, size=128)["count"] == 120
        assert java.call("total")["count"] == 120
        assert java.call("read", limit=7, count=1000, decode=True)["count"] == 120
        assert java.call("find", count=5, seed=1)["count"] == 5
        assert java.call("offset_at", count=5, seed=1)["count"] == 5
        assert java.call("lag", count=2, size=128)["latency"]["100"] > 0
        assert java.call("queues", count=3, size=128)["count"] == 3
        assert java.call("memory")["own_kib"] > 0
    # The two of the lag are there as well; and the bytes are those of ours.
    with EngineProcess("penstock") as ours:
        ours.open(tmp_path / "store", tmp_path / "bodies")
        assert ours.call("total")["count"] == 125
