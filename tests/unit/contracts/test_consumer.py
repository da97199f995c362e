"""The contract of consumers."""

import inspect

from penstock.contracts import consumer
from penstock_messaging.consuming.consumed_message import HandedMessage
from penstock_messaging.consuming.consumer import GroupConsumer


def methods(cls: type) -> dict[str, list[tuple[str, object]]]:
    found = {}
    for name, each in inspect.getmembers(cls, inspect.isfunction):
        if name[0] != "_":
            parameters = inspect.signature(each).parameters.values()
            found[name] = [(one.name, one.default) for one in parameters]
    return found


def test_the_consumer_has_the_methods_of_the_contract_with_their_defaults() -> None:
    wanted = methods(consumer.Consumer)
    assert {name: methods(GroupConsumer)[name] for name in wanted} == wanted


def test_a_consumed_message_has_the_methods_of_the_contract() -> None:
    wanted = methods(consumer.ConsumedMessage)
    assert wanted.keys() == {"ack", "nack", "release", "extend"}
    assert {name: methods(HandedMessage)[name] for name in wanted} == wanted


def test_every_option_is_documented() -> None:
    documented = consumer.ConsumerOptions.__doc__ or ""
    assert all(
        f"\n        {name}:" in documented for name in consumer.ConsumerOptions.__annotations__
    )
