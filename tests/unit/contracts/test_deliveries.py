"""Deliveries, made and answered many at a time; what is no delivery is refused before anything changes."""

import gc
import weakref
from typing import Any

import pytest

from penstock import StoredMessage
from penstock.contracts.deliveries import (
    Delivery,
    deliver,
    finish,
    hand_out,
    open_offsets,
)
from penstock.format.record import RecordFields, encode_record


class Handed(Delivery):
    __slots__ = ("__weakref__",)


def stored(*offsets: int) -> list[StoredMessage]:
    return [
        StoredMessage(encode_record(RecordFields(topic=b"t", body=b"%d" % n, queue_offset=n)))
        for n in offsets
    ]


def made(*offsets: int, flight: object = "flight") -> tuple[list[Handed], dict[int, Handed]]:
    opened: dict[int, Handed] = {}
    return deliver(Handed, stored(*offsets), "t", flight, opened), opened


def test_a_first_delivery_is_that_of_its_constructor() -> None:
    (first, second), opened = made(5, 1 << 40)
    assert opened == {5: first, 1 << 40: second}
    other = Handed(first.stored, "t", 1, "flight", 5)
    for each in (first, other):
        facts = (each.topic, each.attempt, each.flight, each.offset, each.state, each.by, each.body)
        assert facts == ("t", 1, "flight", 5, 0, None, b"5")
    assert type(second) is Handed
    assert second.body == b"%d" % (1 << 40)


def test_messages_of_another_class_have_their_own_offset_and_body() -> None:
    class Other:
        queue_offset, body = 7, b"other"

    other: Any = Other()
    (each,) = deliver(Handed, [other], "t", None, {})
    assert (each.offset, each.body) == (7, b"other")


def test_the_offsets_that_are_open() -> None:
    given, opened = made(0, 1, 2, 3)
    assert open_offsets(given, opened) == range(4)
    assert open_offsets(given[::-1], opened) == [0, 1, 2, 3]
    assert open_offsets([given[1], given[1], given[3]], opened) == [1, 3]
    del opened[0]
    assert open_offsets(given, opened) == [1, 2, 3]
    assert not open_offsets(given[:1], opened)
    assert not open_offsets([], opened)


def test_what_is_finished_is_finished_once_and_with_its_current_delivery() -> None:
    given, opened = made(0, 1)
    again = Handed(given[0].stored, "t", 2, "flight", 0)
    opened[0], out = again, {again: 20, given[1]: 20}
    finish(given[:1], opened, out, 2)
    assert (given[0].state, again.state, given[1].state) == (2, 2, 0)
    assert (opened, out) == ({1: given[1]}, {given[1]: 20})
    given[0].state = 3
    finish(given, opened, out, 2)
    assert ([each.state for each in given], opened, out) == ([3, 2], {}, {})


def test_what_is_no_delivery_is_refused_before_anything_changes() -> None:
    given, opened = made(0)
    wrong: Any = [*given, object()]
    out: dict[Handed, int] = {}
    with pytest.raises(TypeError):
        hand_out(wrong, 0, 1, None, 0, out, 0)
    with pytest.raises(TypeError):
        open_offsets(wrong, opened)
    no_kind: Any = object
    with pytest.raises(TypeError):
        deliver(no_kind, stored(0), "t", None, opened)
    no_message: Any = [None]
    with pytest.raises(AttributeError):
        deliver(Handed, no_message, "t", None, opened)
    assert (given[0].state, opened, out) == (0, {0: given[0]}, {})


def test_a_kind_that_makes_something_else_is_refused() -> None:
    class Strange(Delivery):
        def __new__(cls) -> Any:
            return object()

    with pytest.raises(TypeError):
        deliver(Strange, stored(0), "t", None, {})


@pytest.mark.slow
def test_deliveries_that_refer_to_each_other_are_collected() -> None:
    flight: list[object] = []
    (each,), opened = made(0, flight=flight)
    flight += [each, opened]
    gone = weakref.ref(each)
    del each, flight, opened
    gc.collect()
    assert gone() is None
