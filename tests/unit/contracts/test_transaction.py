"""The contract of transactions, and the options of a put."""

import inspect
from typing import get_type_hints

from penstock import Message
from penstock.contracts import PutOptions, Transaction
from penstock.contracts.transaction import PutOptions as Defined
from penstock_messaging.transactions.batch import BatchTransaction


def test_the_options_are_fields_of_a_message() -> None:
    assert PutOptions is Defined
    made = Message("t", b"")
    assert all(hasattr(made, name) for name in get_type_hints(PutOptions))


def test_the_extension_implements_the_contract() -> None:
    for name, function in inspect.getmembers(Transaction, inspect.isfunction):
        if not name.startswith("_") or name in ("__enter__", "__exit__"):
            found = inspect.signature(getattr(BatchTransaction, name))
            assert list(found.parameters) == list(inspect.signature(function).parameters), name
