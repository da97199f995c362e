"""Tables of a broker as files beside the log, and back; the bodies are those of real brokers."""

import json
import struct

import pytest
from tests.unit.penstock_replicate.test_side_names import GOOD

from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock_replicate.remoting.remoting_frames import RemotingError
from penstock_replicate.remoting.tables import (
    ALL_DELAYS,
    ALL_GROUPS,
    ALL_OFFSETS,
    ALL_REQUEST_MODES,
    ALL_TOPICS,
    TABLE_REQUESTS,
    TIMER_CHECK,
    TIMER_METRICS,
    answer_to,
    file_of,
    log_end_in,
)

BY_CODE = {each.code: each for each in TABLE_REQUESTS}
OFFSETS_4 = b'{"offsetTable":{"T1@G1":{0:2,1:0},"%RETRY%G1@G1":{0:0}}}'
OFFSETS_5 = b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795466265486},"groupTopicMap":{"G1":["T1"]},"offsetTable":{"T1@G1":{0:2}}}'


def test_offsets_of_both_versions_become_the_file() -> None:
    old = file_of(BY_CODE[ALL_OFFSETS], OFFSETS_4)
    assert json.loads(old) == {"offsetTable": {"T1@G1": {"0": 2, "1": 0}, "%RETRY%G1@G1": {"0": 0}}}
    new = json.loads(file_of(BY_CODE[ALL_OFFSETS], OFFSETS_5))
    assert list(new) == ["dataVersion", "offsetTable"]
    assert new["offsetTable"] == {"T1@G1": {"0": 2}}


def test_topics_become_a_file_without_what_belongs_elsewhere() -> None:
    body = b'{"dataVersion":{"counter":2},"mappingDataVersion":{"counter":0},"topicConfigTable":{"T":{"perm":6}}}'
    found = json.loads(file_of(BY_CODE[ALL_TOPICS], body))
    assert found == {"dataVersion": {"counter": 2}, "topicConfigTable": {"T": {"perm": 6}}}


def test_a_check_point_becomes_a_file_with_no_place_in_a_timer_log() -> None:
    body = struct.pack(">7q", 1000, 520, 9, 7, 0, 1795466265526, 4)
    found = file_of(BY_CODE[TIMER_CHECK], body)
    assert len(found) == 4096
    assert struct.unpack_from(">7q", found) == (1000, 0, 7, 7, 0, 1795466265526, 4)
    never_a_slave = struct.pack(">7q", 1000, 520, 9, 0, 0, 0, 0)
    assert struct.unpack_from(">7q", file_of(BY_CODE[TIMER_CHECK], never_a_slave))[2:4] == (9, 9)


@pytest.mark.parametrize("code", BY_CODE)
@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 100_000, b"\xff" * 56])
def test_what_is_no_answer_of_a_master_is_an_error(code: int, body: bytes) -> None:
    # A check point is any seven numbers that are not negative.
    body = body[:55] if code == TIMER_CHECK and body[:1] == b"[" else body
    with pytest.raises(RemotingError, match=f"request {code}"):
        file_of(BY_CODE[code], body)


@pytest.mark.parametrize("code", [code for code in BY_CODE if code != TIMER_CHECK])
def test_an_answer_is_compact_and_has_a_version_and_the_table(code: int) -> None:
    request = BY_CODE[code]
    body = answer_to(code, GOOD)
    assert body is not None
    assert b" " not in body
    assert b"\n" not in body
    found = json.loads(body)
    assert found["dataVersion"]
    assert found[request.tables[0]] == parse_rocketmq_json(GOOD[request.name].decode())[request.tables[0]]  # fmt: skip
    assert file_of(request, body)


def test_a_master_without_files_has_empty_tables() -> None:
    for code in (ALL_TOPICS, ALL_OFFSETS, ALL_DELAYS, ALL_GROUPS):
        found = json.loads(answer_to(code, {}) or b"")
        assert found[BY_CODE[code].tables[0]] == {}
    assert json.loads(answer_to(ALL_REQUEST_MODES, {}) or b"") == {"messageRequestModeMap": {}}
    assert json.loads(answer_to(TIMER_METRICS, {}) or b"")["timingCount"] == {}


def test_a_check_point_is_the_begin_of_the_file() -> None:
    data = struct.pack(">7q", 1, 2, 3, 4, 5, 6, 7).ljust(4096, b"\0")
    assert answer_to(TIMER_CHECK, {"config/timercheck": data}) == data[:56]
    assert answer_to(TIMER_CHECK, {}) is None


def test_other_requests_have_no_answer() -> None:
    assert answer_to(310, GOOD) is None


def test_the_end_of_a_log_is_in_the_figures() -> None:
    assert log_end_in(b'{"table":{"commitLogMaxOffset":"764","other":"1"}}') == 764


@pytest.mark.parametrize("body", [b"", b"{}", b'{"table":[]}', b'{"table":{}}', b'{"table":{"commitLogMaxOffset":"-1"}}', b'{"table":{"commitLogMaxOffset":"99999999999999999999"}}'])  # fmt: skip
def test_figures_without_an_end_are_an_error(body: bytes) -> None:
    with pytest.raises(RemotingError, match="broker"):
        log_end_in(body)
