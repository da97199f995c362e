"""The words of consumers: every option and every method says what it does."""

import inspect

from penstock.contracts.consumer import ConsumedMessage, Consumer, ConsumerOptions, Pending


def test_every_option_is_explained() -> None:
    text = inspect.getdoc(ConsumerOptions) or ""
    assert [name for name in ConsumerOptions.__annotations__ if f"{name}: " not in text] == []


def test_every_method_is_explained() -> None:
    for protocol in (Consumer, ConsumedMessage):
        for name, member in vars(protocol).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                assert inspect.getdoc(member), name


def test_what_is_pending_is_a_tuple_of_numbers() -> None:
    assert Pending("t", 0, 7, 1.5, 28.5)._asdict()["left_s"] == 28.5
