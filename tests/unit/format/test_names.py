"""Which names may become folders and files of a store."""

from penstock.format.names import segment_name


def test_file_names() -> None:
    assert segment_name(3221225472) == "00000000003221225472"
