"""Change notes are short sentences for users, of a type that CHANGELOG.md has a heading for."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "changes"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = {kind["directory"]: kind["name"] for kind in SETTINGS["type"]}
NAME = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(TYPES)})\.md")
NOTES = sorted(set(FOLDER.iterdir()) - {FOLDER / "README.md", FOLDER / "template.md"})
SENTENCES_MAX, WORDS_MAX = 3, 40


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a note; what is code counts as one word."""
    plain = re.sub(r"`[^`]*`", "code", " ".join(text.split()))
    return [each for each in re.split(r"(?<=[.!?])\s+", plain.replace("**", "")) if each]


def test_a_note_has_a_type_and_is_one_to_three_short_sentences() -> None:
    for path in NOTES:
        assert NAME.fullmatch(path.name), (
            f"{path.name} is not <what>.<type>.md, type {', '.join(TYPES)}"
        )
        text = path.read_text()
        sentences = sentences_of(text)
        assert text == text.strip() + "\n", path.name
        assert text.startswith("**"), f"{path.name}: a note begins with its subject in bold"
        assert 1 <= len(sentences) <= SENTENCES_MAX, path.name
        for sentence in sentences:
            assert sentence.endswith("."), f"{sentence!r} does not end in a full stop"
            assert len(sentence.split()) <= WORDS_MAX, f"{sentence!r} is long"


def test_the_notes_page_names_every_type_with_its_heading() -> None:
    page = (FOLDER / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE) == list(TYPES.items())


def test_the_changelog_has_the_place_where_a_release_goes_and_known_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.count(SETTINGS["start_string"]) == 1
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= set(TYPES.values())
