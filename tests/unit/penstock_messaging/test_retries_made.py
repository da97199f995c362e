"""Finding the retries of a group that are in the log already."""

from pathlib import Path

from tests.crash.group_story import SETTINGS, PlainRetries

from penstock.store.store import Store
from penstock.testing.kit import open_store
from penstock_messaging.groups.retries_made import RetriesMade


def put_retries(store: Store, group: str, count: int) -> list[tuple[str, int]]:
    """Put retries of the first messages; return their origins."""
    retries = PlainRetries()
    messages = store.read("t", 0, 0, count).messages
    copies = [retries.copy(message, group, 1 + n % 3, None) for n, message in enumerate(messages)]
    store.put_copies(copies)
    return [(message.message_id, 1) for message in messages]


def test_those_from_the_log_offset_on_are_found_and_no_others(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", **SETTINGS) as store:
        for number in range(100):
            store.put("t", b"%d" % number)
        early = put_retries(store, "g", 1)
        end = store.flush()
        of_others = set(put_retries(store, "h", 100)) - set(early)
        origin = PlainRetries().origin
        assert all(key not in RetriesMade(store, "g", end, origin) for key in of_others)
        assert early[0] not in RetriesMade(store, "g", end, origin)
        mine = put_retries(store, "g", 90)
        made = RetriesMade(store, "g", end, origin)
        assert all(key in made for key in mine)
        assert (mine[0][0], 2) not in made
