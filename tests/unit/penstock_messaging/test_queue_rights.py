"""What consumers need from the queues of a group is what groups and broadcasts offer."""

import inspect

import pytest
from tests.fake_group import FakeClaims, FakeQueue

from penstock_messaging.consuming import queue_rights
from penstock_messaging.consuming.broadcast import BroadcastClaims, BroadcastQueue
from penstock_messaging.groups.claims import Claims
from penstock_messaging.groups.entries import GROUP_SETTING
from penstock_messaging.groups.owned_queue import OwnedQueue

QUEUES = (OwnedQueue, BroadcastQueue, FakeQueue)
CLAIMS = (Claims, BroadcastClaims, FakeClaims)


def methods(cls: type) -> dict[str, list[str]]:
    found = inspect.getmembers(cls, inspect.isfunction)
    return {
        name: list(inspect.signature(each).parameters) for name, each in found if name[0] != "_"
    }


@pytest.mark.parametrize("cls", QUEUES)
def test_a_queue_has_the_methods(cls: type) -> None:
    wanted = methods(queue_rights.QueueRight)
    assert wanted.keys() == {"ack", "nack", "retry", "reset", "advance", "sync", "hand_back"}
    assert {name: methods(cls)[name] for name in wanted} == wanted


@pytest.mark.parametrize("cls", CLAIMS)
def test_a_membership_has_the_methods(cls: type) -> None:
    wanted = methods(queue_rights.GroupMembership)
    assert {name: methods(cls)[name] for name in wanted} == wanted


def test_the_value_for_the_group_s_own_setting_is_one() -> None:
    assert queue_rights.GROUP_TRIES == GROUP_SETTING
