"""A command asks the process that follows; a request that is old or not understood does nothing."""

from pathlib import Path

import pytest

from penstock.files import Files
from penstock_replicate.roles.requests import VALID_MS, PromotionRequests


@pytest.fixture
def requests(tmp_path: Path) -> PromotionRequests:
    (tmp_path / "penstock").mkdir()
    return PromotionRequests(Files(), tmp_path)


def test_a_request_is_seen_and_its_answer_is_read_once(requests: PromotionRequests) -> None:
    assert requests.pending(5) is None
    token = requests.ask(7, 5)
    assert requests.pending(6) == token
    assert requests.answer_to(token) is None
    requests.answer(token, epoch=2)
    assert requests.pending(6) is None
    assert requests.answer_to("other") is None
    assert requests.answer_to(token) == {"token": token, "epoch": 2}
    assert requests.answer_to(token) is None


def test_a_request_that_nobody_waits_for_any_more_is_removed(
    requests: PromotionRequests, tmp_path: Path
) -> None:
    requests.ask(7, 5)
    assert requests.pending(5 + VALID_MS) is None
    assert list((tmp_path / "penstock").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"token": 3, "time_ms": 5}', b"[" * 60_000, b" " * 70_000])  # fmt: skip
def test_what_is_not_understood_is_no_request(
    requests: PromotionRequests, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "penstock" / "promote-request"
    path.write_bytes(content)
    assert requests.pending(5) is None
    assert not path.exists()
