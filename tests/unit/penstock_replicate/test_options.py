"""Addresses, and what goes together."""

import pytest

from penstock.errors import ArgumentError
from penstock_replicate.following.options import Address, FollowOptions


@pytest.mark.parametrize("text", ["10.0.0.2:10912", "[::1]:1", "broker-a.example:65535"])
def test_an_address_is_parsed_and_printed(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", ":1", "a", "a:", "a:0", "a:65536", "a:1x", "a:-1", "a:٣", 5, None]
)
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(ArgumentError):
        Address.parse(text)


def test_what_goes_over_no_network_is_known() -> None:
    assert Address.parse("localhost:1").is_this_machine
    assert Address.parse("127.9.9.9:1").is_this_machine
    assert Address.parse("[::1]:1").is_this_machine
    assert not Address.parse("10.0.0.2:1").is_this_machine


def test_a_master_with_secret_or_tls_is_no_rocketmq() -> None:
    master = Address.parse("a:1")
    assert FollowOptions(master=master).may_be_rocketmq
    assert not FollowOptions(master=master, protocol="penstock").may_be_rocketmq
    assert not FollowOptions(master=master, secret_file="s").may_be_rocketmq
    assert not FollowOptions(master=master, tls_ca="c").may_be_rocketmq
