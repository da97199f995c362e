"""The contract of a prepared message: what the extension returns has all of it."""

from pathlib import Path

import pytest

from penstock.contracts.prepared import CheckBack, CheckBacks, Prepared
from penstock.testing import ManualWorkers, open_store


@pytest.mark.parametrize("name", [name for name in dir(Prepared) if not name.startswith("_")])
def test_a_prepared_message_has_what_the_contract_says(tmp_path: Path, name: str) -> None:
    check: CheckBack = lambda prepared: prepared.group  # noqa: E731 - to have its type
    given: CheckBacks = {"g": check}
    with open_store(tmp_path / "s", spawn=ManualWorkers(), check_back=given) as store:
        made: Prepared = store.prepare("t", b"x", group="g")
        assert getattr(made, name) is not None
        assert (made.transaction_id, made.topic, made.queue, made.group) == (made.message.all_properties["UNIQ_KEY"], "t", 0, "g")  # fmt: skip
