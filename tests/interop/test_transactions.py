"""The real Java store opens logs with marks of atomic batches: it shows the messages, and makes the same queues of them."""

import shutil
from pathlib import Path
from typing import Any

from tests.interop.compare import facts, queue_files, shown_by_java
from tests.interop.javastore import JavaStore
from tests.interop.test_interop import java_messages, open_here, our_messages


def shown(dumped: dict[tuple[str, int], dict[str, Any]]) -> dict[tuple[str, int], list[Any]]:
    """Return Java's messages by queue, without marks, which are negative; at least one must have a mark."""
    found = {
        place: [shown_by_java(m) for m in queue["messages"]] for place, queue in dumped.items()
    }
    marked = 0
    for messages in found.values():
        for message in messages:
            marked += message["prepared_offset"] < 0
            message["prepared_offset"] = max(message["prepared_offset"], 0)
    assert marked > 0
    return {place: messages for place, messages in found.items() if messages}


def test_java_sees_every_message_and_makes_the_same_queues(java: JavaStore, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_here(root) as store:
        for turn in range(4):
            store.put_many(our_messages(100, turn * 1000), atomic=True)
            with store.transaction() as tx:
                tx.put_many(our_messages(50, turn * 1000 + 500))
                tx.put("later", b"%d" % turn, queue=0, delay_level=18)
        ours = {
            (topic, queue): [facts(message) for message in store.scan(topic, queue=queue)]
            for topic, queues in store.topics(system=True).items()
            for queue in queues
        }
    queues = queue_files(root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    assert java.open(root)
    assert shown(java.dump()) == ours
    assert java.put(*java_messages(20, 9000))[0]["status"] == "PUT_OK"
    java.close()
    made = queue_files(root)
    for name, data in queues.items():
        kept = data.rstrip(b"\0")
        assert made[name][: len(kept)] == kept, name
    with open_here(root) as store:
        assert not list(store.verify())
        with store.transaction() as tx:
            tx.put("topic0", b"after Java", queue=0)
            tx.put("topic1", b"after Java", queue=0)
        assert not list(store.verify())
