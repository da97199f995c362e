"""One line about a store."""

from penstock.contracts.summary_line import SummaryLine


def test_a_line_is_a_tuple_of_its_parts() -> None:
    assert tuple(SummaryLine("delayed", "delayed messages", "3", 3)) == ("delayed", "delayed messages", "3", 3)  # fmt: skip
