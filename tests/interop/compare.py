"""Compares what Java and Penstock say of one store, field by field."""

import base64
import ipaddress
from pathlib import Path
from typing import Any

from penstock import Store, StoredMessage

NUMBERS = ("queue", "queue_offset", "log_offset", "flag", "sys_flag", "born_time_ms", "store_time_ms",
           "reconsume_times", "prepared_offset", "size", "crc")  # fmt: skip


def host_text(host: str) -> str:
    """Return a host as the Java driver writes it: hex of the address, colon, port."""
    address, _, port = host.rpartition(":")
    return f"{ipaddress.ip_address(address.strip('[]')).packed.hex()}:{port}"


def facts(message: StoredMessage) -> dict[str, Any]:
    """Return a message with every field, as the Java driver shows one."""
    shown: dict[str, Any] = {name: getattr(message, name) for name in NUMBERS}
    return shown | {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "born_host": host_text(message.born_host),
        "store_host": host_text(message.store_host),
        "message_id": message.message_id,
        "properties": {k: v for k, v in message.all_properties.items() if k != "__CRC32#"},
    }


def shown_by_java(message: dict[str, Any]) -> dict[str, Any]:
    """Return Java's view without the CRC property, which is the store's and not the user's."""
    properties = {k: v for k, v in message["properties"].items() if k != "__CRC32#"}
    return message | {"properties": properties}


def same(store: Store, dumped: dict[tuple[str, int], dict[str, Any]]) -> int:
    """Assert that both see the same messages in the same queues; returns how many."""
    queues = {(t, q) for t, numbers in store.topics(system=True).items() for q in numbers}
    assert {key for key, queue in dumped.items() if queue["max"]} == {
        key for key in queues if store.max_offset(*key)
    }
    count = 0
    for (topic, number), queue in dumped.items():
        assert queue["max"] == store.max_offset(topic, number), (topic, number)
        if queue["max"]:
            assert queue["min"] == store.min_offset(topic, number), (topic, number)
        ours = [facts(m) for m in (store.scan(topic, queue=number) if queue["max"] else ())]
        theirs = [shown_by_java(m) for m in queue["messages"]]
        assert ours == theirs, (topic, number)
        count += len(ours)
    return count


def queue_files(root: Path) -> dict[str, bytes]:
    """Return the bytes of all files of consume queues, by their names below the folder."""
    folder = root / "consumequeue"
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }
