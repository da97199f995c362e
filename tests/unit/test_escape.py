"""Text from anywhere is safe on a terminal and in a log line; what is harmless stays as it is."""

import json
import logging

import pytest

from penstock.escape import EscapingFormatter, get_logger, visible, visible_json

DANGEROUS = ["\x00", "\x1b", "\n", "\x7f", "\x9b", "\u061c", "\u200e", "\u202e", "\u2066", "\u2028", "\udcff"]  # fmt: skip


@pytest.mark.parametrize("character", DANGEROUS, ids=ascii)
def test_what_drives_a_terminal_is_shown_as_python_writes_it(character: str) -> None:
    assert visible(f"a{character}b") == f"a{ascii(character)[1:-1]}b"


def test_what_is_harmless_or_escaped_already_stays() -> None:
    for text in ("größe 漢字 🙂", "a\\x1bb", ""):
        assert visible(text) == visible(visible(text)) == text


def test_lines_stay_where_they_were_laid_out_and_nothing_else() -> None:
    assert visible("a\n\tb\r\x1b", keep_lines=True) == "a\n\tb\\r\\x1b"


def test_json_stays_json_of_the_same_value() -> None:
    value = {"topic": "a\u202eb\x7f", "body": "c\n"}
    line = visible_json(json.dumps(value, ensure_ascii=False))
    assert "\u202e" not in line
    assert json.loads(line) == value


def test_a_log_record_escapes_what_it_is_given_and_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = get_logger("penstock.tests.escape")
    assert get_logger("penstock.tests.escape") is logger
    assert len(logger.filters) == 1
    error = ValueError("bad \x1b[2J")
    logger.error("topic %s, %r, %d", "a\x1b", error, 7, exc_info=error)
    assert "\x1b" not in caplog.text
    assert "topic a\\x1b" in caplog.text
    assert ", 7" in caplog.text


def test_arguments_by_name_are_escaped_too(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("penstock.tests.escape").warning("%(topic)s is %(count)d", {"topic": "\n", "count": 2})  # fmt: skip
    assert caplog.messages == ["\\n is 2"]


def test_records_of_others_are_escaped_as_they_are_formatted() -> None:
    record = logging.LogRecord("other", logging.WARNING, "", 0, "a\x1b\nb", None, None)
    assert EscapingFormatter("%(message)s").format(record) == "a\\x1b\nb"
