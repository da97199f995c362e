"""What a contributor is told is so: paths that exist, make targets that exist, decisions in their form."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
# Only what a source distribution has, too.
PLACES = "core|tools|plugins|pipeline|bench|examples|tests|docs|changes"
PATHS = sorted(set(re.findall(rf"`((?:{PLACES})/[^`\s]*)`", PAGE)))


def test_every_path_that_the_page_names_exists() -> None:
    for path in PATHS:
        # A name in angle brackets stands for any.
        pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
        assert any(ROOT.glob(pattern)), f"CONTRIBUTING.md names {path}, which is not there"


def test_every_link_of_the_page_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_every_make_target_of_the_page_is_in_the_makefile_and_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {
        target
        for text in re.findall(r"(?:`|\$ )make ([a-z -]+)", PAGE)
        for target in text.split("  ")[0].split()
    }
    assert {"quick", "test", "check", "changes", "mutants"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        assert target == "help" or f'@echo "make {target}  ' in makefile, (
            f"make help lacks {target}"
        )


def test_every_decision_has_its_number_and_its_parts() -> None:
    folder = ROOT / "docs" / "decisions"
    names = sorted(path.stem for path in folder.glob("*.md"))
    for number, name in enumerate(names, 1):
        assert name.startswith(f"{number:04}-"), f"{name} is decision {number}"
        text = (folder / f"{name}.md").read_text()
        assert text.startswith(f"# {number}. "), f"{name} does not begin with its number"
        assert "**Context.**" in text, name
        assert "**Choice.**" in text, name
