"""Fuzz target: a hash index file of any bytes beside a sound log: look-ups end, and what they find is right."""

from tests.fuzz.ground import SIZES, ground, verified

from penstock.files import Files
from penstock_index.index_file import IndexFile


def target(data: bytes) -> None:
    made = ground()
    size = SIZES.index_file_bytes
    content = data[:size].ljust(size, b"\0")
    made.index_file.write_bytes(content)
    reader, _, index = made.reader()
    try:
        records = set(made.records.values())
        for key in ("same", "k3", "none"):
            for message in reader.find(key, "a", limit=100):
                assert key in message.keys
                assert message.record in records
            reader.find(key, "a", since=1 / 1000, until=1_700_000_000_000 / 1000)
        findings, _ = verified(made.log, [index], made.end)
        assert len(findings) < 1000
        if content == made.index_bytes:
            assert not findings
        file = IndexFile(Files().open(made.index_file, writable=True), SIZES)
        file.chains_are_valid()
        file.cut(min(5, len(file.entries())), 1, 2)
        assert file.chains_are_valid()
        file.close()
    finally:
        index.close()
        made.index_file.write_bytes(made.index_bytes)
