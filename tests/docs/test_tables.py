"""The tables of settings and of errors say what the code says, in a row for each."""

import pytest
from tests.docs.tables import (
    ERRORS_PAGE,
    SETTINGS_PAGE,
    error_classes,
    pages,
    rows_of,
    settings,
)


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
