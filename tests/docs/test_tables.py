"""The tables of settings and of errors say what the code says, in a row for each."""

from collections.abc import Callable

import attrs
import pytest
from tests.docs.tables import (
    ERRORS_PAGE,
    SETTINGS_PAGE,
    error_classes,
    errors_table,
    limits,
    pages,
    rows_of,
    settings,
    settings_table,
)

from penstock.errors import ConfigError


@pytest.mark.parametrize("path", [SETTINGS_PAGE, ERRORS_PAGE], ids=lambda path: path.name)
def test_the_tables_are_those_of_the_code(path: object) -> None:
    for page, text in pages().items():
        if page == path:
            assert page.read_text() == text, (
                f"{page} is not up to date: run `python -m tests.docs.tables`"
            )


def test_every_setting_says_what_it_does_and_every_error_what_to_do() -> None:
    of_settings, of_errors = rows_of(SETTINGS_PAGE.read_text()), rows_of(ERRORS_PAGE.read_text())
    for key, _, _ in settings():
        default, limit, words = of_settings[key]
        assert default, key
        # Negative intervals and pools of -1 files were accepted, and failed long after the store was opened.
        assert limit
        assert limit != "any number", key
        assert len(words) > 10, key
    for kind in error_classes():
        when, kept, now, code = of_errors[kind.__name__]
        assert when and kept and now and code, f"{kind.__name__} has an empty cell"  # noqa: PT018 - one story


def test_a_name_that_is_new_gets_a_row_with_its_docstring() -> None:
    rows = rows_of(settings_table(""))
    assert "longer than this, waiting appends raise" in rows["log.busy_ms"][-1]
    assert rows_of(errors_table(""))["QueueError"] == [
        "A queue number outside 0 .. the limit",
        "",
        "",
        "2",
    ]


@attrs.frozen(kw_only=True)
class Made:
    bounded: int = attrs.field(
        default=7, validator=[attrs.validators.ge(-3), attrs.validators.lt(900)]
    )
    least: float = attrs.field(default=1.5, validator=attrs.validators.ge(1))
    any_number: int = 5
    switch: bool = True


@pytest.mark.parametrize(("name", "expected"), [
    ("bounded", "-3 to 899"), ("least", "at least 1"), ("any_number", "any number"), ("switch", "true, false"),
])  # fmt: skip
def test_limits_are_what_is_accepted(name: str, expected: str) -> None:
    assert limits(f"made.{name}", Made, attrs.fields_dict(Made)[name]) == expected


@pytest.mark.parametrize("key", ["scrub.mib_per_s", "index.consume-queue.open_files_max"])
def test_a_value_beyond_the_limits_is_refused(
    key: str, refused: Callable[[str, int], bool]
) -> None:
    low = int(
        rows_of(SETTINGS_PAGE.read_text())[key][1]
        .removeprefix("at least ")
        .split(" ")[0]
        .replace(",", "")
    )
    assert refused(key, low - 1)
    assert not refused(key, low)


@pytest.fixture
def refused() -> Callable[[str, int], bool]:
    """Return a function that says whether a setting does not take a value."""
    known = {key: (cls, field) for key, cls, field in settings()}

    def is_refused(key: str, value: int) -> bool:
        cls, field = known[key]
        try:
            cls(**{field.name: value})
        except (ValueError, ConfigError):
            return True
        return False

    return is_refused
