"""The arguments of `follow` are checked before anything is done."""

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ArgumentError, ConfigError
from penstock_replicate.following.follow import follow


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"master": "nowhere"}, "master"),
        ({"master": "10.0.0.2:0"}, "master"),
        ({"master": "10.0.0.2:99999"}, "master"),
        ({"master": "10.0.0.2:1", "protocol": "kafka"}, "protocol"),
        ({"master": "10.0.0.2:1", "protocol": "rocketmq", "tls_ca": "ca.pem"}, "protocol"),
        ({"master": "10.0.0.2:1", "remoting": "broker"}, "remoting"),
        ({"master": "10.0.0.2:1", "cut": True, "full_copy": True}, "cut"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(tmp_path: Path, given: dict[str, Any], named: str) -> None:  # fmt: skip
    with pytest.raises(ArgumentError) as caught:
        follow(tmp_path / "c", **given)
    assert caught.value.argument == named
    assert not (tmp_path / "c").exists()


def test_files_of_tls_that_cannot_be_read_are_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TLS"):
        follow(tmp_path / "c", "10.0.0.2:1", tls_ca=str(tmp_path / "none.pem"))
