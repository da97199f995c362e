"""Committed offsets as text: a bad entry is set aside, a good one used, what is written read back."""

import json
from typing import Any

import numpy as np
import pytest

from penstock.errors import CommitError, MessageError
from penstock.store.offset_table import (
    OFFSET_MAX,
    Table,
    check_group,
    check_known,
    check_offset,
)


def table(**entries: Any) -> Table:
    return Table.parse(json.dumps({"offsetTable": entries, "dataVersion": 3}).encode())


def test_entries_of_rocketmqs_form_are_used() -> None:
    found = Table.parse(b'{"offsetTable":{"t@g":{0:7,1:8},"a@b@g":{"2":9}}}')
    assert found.used == {"t@g": {0: 7, 1: 8}, "a@b@g": {2: 9}}
    assert found.aside == []


@pytest.mark.parametrize(
    "entry",
    [
        {"t": {"0": 1}}, {"t@": {"0": 1}}, {"@g": {"0": 1}}, {"../t@g": {"0": 1}}, {"t@g": [1]},
        {"t@g": {"0x": 1}}, {"t@g": {"01": 1}}, {"t@g": {"-1": 1}}, {"t@g": {"0": 1.5}}, {"t@g": {"0": -1}},
        {"t@g": {"0": True}}, {"t@g": {"0": OFFSET_MAX + 1}}, {"t@g": {"0": "1"}}, {"t@g": {"9" * 5000: 1}},
    ],
)  # fmt: skip
def test_a_bad_entry_is_set_aside_and_stays(entry: dict[str, Any]) -> None:
    found = table(**entry, **{"good@g": {"0": 5}})
    assert found.used.pop("good@g") == {0: 5}
    assert not any(found.used.values())
    assert len(found.aside) == 1
    raw, again = found.with_offsets({("good@g", 0): 6}).written()
    assert entry.items() <= json.loads(raw)["offsetTable"].items()
    assert again.used["good@g"] == {0: 6}


def test_a_change_leaves_the_rest_and_the_table_before_it() -> None:
    before = table(**{"t@g": {"0": 1, "1": 2}})
    after = before.with_offsets({("t@g", 1): 5, ("u@g", 0): 6})
    assert after.used == {"t@g": {0: 1, 1: 5}, "u@g": {0: 6}}
    assert before.used == {"t@g": {0: 1, 1: 2}}
    assert json.loads(after.written()[0])["dataVersion"] == 3


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b'{"offsetTable":[]}'])
def test_what_is_no_table_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Table.parse(raw)


@pytest.mark.parametrize("group", ["", "a@b", "\n", 5, "x" * 256])
def test_what_is_no_group_is_refused(group: object) -> None:
    with pytest.raises(MessageError, match="is refused"):
        check_group(group)
    assert check_group("x" * 255)


def test_an_offset_is_a_whole_number_up_to_the_queues_end() -> None:
    assert check_offset("g", "t", 0, np.int64(9), 9) == 9
    for offset, reason in ((10, "ends at 9"), (-1, "negative"), (1.0, "whole number"), (True, "whole")):  # fmt: skip
        with pytest.raises(CommitError, match=reason):
            check_offset("g", "t", 0, offset, 9)


def test_a_queue_that_nobody_put_to_has_no_offset() -> None:
    class Queues:
        def queues(self) -> list[tuple[str, int]]:
            return [("t", 0), ("t", 1)]

        def max_offset(self, topic: str, queue: int) -> int:
            return 5 if (topic, queue) == ("t", 0) else 0

        def reaches(self, topic: str, queue: int, offset: int) -> bool:
            return offset <= self.max_offset(topic, queue)

    assert [check_known(Queues(), "g", "t", queue, 0) for queue in (0, 1)] == [5, 0]
    with pytest.raises(CommitError, match="no such queue"):
        check_known(Queues(), "g", "t", 2, 0)
