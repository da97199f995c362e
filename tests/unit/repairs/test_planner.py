"""What a repair would do: a plan, of a store on which nothing is changed."""

from pathlib import Path

from penstock.contracts import Dispatcher, NoOptions, Trust
from penstock.contracts.base import Geometry
from penstock.contracts.dispatcher import DispatchBatch
from penstock.files import Files
from penstock.testing import make_context, messages, open_store
from penstock.testing.kit import SMALL
from penstock_tools.repairs.planner import Corruption, Patch, PatchedLog, Planner, RepairPlan
from penstock_tools.repairs.repair import RepairStep

SIZE = Geometry(segment_bytes=4096).segment_bytes


def plan_for(folder: Path) -> RepairPlan:
    for base in (0, SIZE):
        (folder / f"{base:020d}").write_bytes(b"x" * SIZE)
    return RepairPlan(PatchedLog(Files(), folder, SIZE), is_ours=True)


def test_a_store_as_it_should_be_needs_nothing(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    assert not plan.is_needed
    assert (plan.standing, plan.log_end) == ([], 0)


def test_each_thing_to_do_is_a_reason_for_a_repair(tmp_path: Path) -> None:
    for change in (
        lambda plan: plan.log.patches.append(Patch(0, b"y", "")), lambda plan: setattr(plan.log, "cut", 5),
        lambda plan: plan.log.lengths.update({0: 7}), lambda plan: setattr(plan, "tail", (5, 9)),
        lambda plan: plan.rebuilds.update({"hash-index": []}), lambda plan: plan.drops.add(0),
        lambda plan: plan.strays.append(tmp_path), lambda plan: plan.marks.append(None),
    ):  # fmt: skip
        plan = plan_for(tmp_path)
        change(plan)
        assert plan.is_needed


def test_what_stays_is_told_with_what_helps(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    plan.damages.append(Corruption(plan.log.segments[1], SIZE + 100, SIZE + 200, "it is bad"))
    (finding,) = plan.standing
    assert (finding.position, finding.log_offset, finding.text) == (100, SIZE + 100, "it is bad")
    assert "restore the segment from a copy" in finding.what_now
    assert not plan.is_needed, "damage that stays is no work"


class Plain(Dispatcher):
    """A third party's dispatcher, which has no checker of its files."""

    name = "plain"
    progress = 0

    def load(self, trust: Trust) -> list[str]:
        return []

    def dispatch(self, batch: DispatchBatch) -> None:
        raise AssertionError("a plan dispatches nothing")

    def flush(self) -> int:
        return 0

    def truncate(self, log_offset: int) -> None:
        raise AssertionError("a plan changes nothing")

    def trim(self, min_offset: int) -> None:
        raise AssertionError("a plan changes nothing")

    def close(self) -> None:
        pass


def test_files_of_a_dispatcher_without_a_checker_are_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_store(root, retention=[]) as store:
        store.put_many(messages(20))
    dispatcher = Plain(NoOptions(), make_context(root, read_only=True))
    planner = Planner(Files(), root, SMALL.segment_bytes, [dispatcher], lambda _tally: None)
    plan = planner.plan(cut=False, accept=False)
    assert (plan.rebuilds, plan.is_needed) == ({}, False)


def test_a_step_that_changes_no_single_bytes_has_no_position(tmp_path: Path) -> None:
    step = RepairStep(action="marks", path=tmp_path, text="")
    assert (step.position, step.stop, step.messages) == (-1, -1, 0)
