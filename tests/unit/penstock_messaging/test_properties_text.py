from pathlib import Path

import pytest

from penstock import Message
from penstock.testing import ManualWorkers, open_store
from penstock_messaging.properties_text import flags_for_copy, pairs_of, stored_text, text_of


@pytest.mark.parametrize("checksum", ["crc32", "crc32+record"])
@pytest.mark.parametrize("text", [b"", b"a\x01b\x02", b"a\x01b", b"a\x01\xff\x02b\x011\x02"])
def test_the_text_of_a_stored_message_is_what_was_stored(
    tmp_path: Path, text: bytes, checksum: str
) -> None:
    """A broker of 4.9 writes no 0x02 at the end; a value need not be UTF-8; a record's own CRC is not part of its text."""
    with open_store(tmp_path, spawn=ManualWorkers(), log={"checksum": checksum}) as store:
        store.put_copies([(Message("t", b"body"), text)])
        found = stored_text(store.read("t").messages[0])
    # The store may close the last pair.
    assert found.removesuffix(b"\x02") == text.removesuffix(b"\x02")


def test_pairs_keep_their_order_and_the_last_of_a_name_counts() -> None:
    text = b"b\x011\x02a\x012\x02b\x013\x02__CRC32#\x010123456789\x02empty\x01\x02\x01no name\x02alone\x02"
    assert pairs_of(text) == {b"b": b"3", b"a": b"2"}
    assert list(pairs_of(text)) == [b"b", b"a"]
    assert text_of(pairs_of(text)) == b"b\x013\x02a\x012\x02"


def test_a_value_may_hold_the_byte_that_ends_a_name() -> None:
    assert pairs_of(b"a\x01b\x01c\x02") == {b"a": b"b\x01c"}


def test_a_copy_does_not_take_the_bits_of_addresses(tmp_path: Path) -> None:
    with open_store(tmp_path, spawn=ManualWorkers()) as store:
        store.put_copies([(Message("t", b"", sys_flag=0x9, born_host="[::1]:7"), b"")])
        message = store.read("t").messages[0]
    assert message.sys_flag == 0x19
    assert flags_for_copy(message) == 0x9
