"""What a repair would do: a plan, of a store on which nothing is changed."""

from pathlib import Path

from penstock.contracts.geometry import Geometry
from penstock.files import Files
from penstock.repairs.patched_log import Patch, PatchedLog
from penstock.repairs.planner import Corruption, RepairPlan

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
        lambda plan: plan.log.short.update({0: 7}), lambda plan: setattr(plan, "tail", (5, 9)),
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
