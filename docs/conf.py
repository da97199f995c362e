"""Sphinx settings; `make docs` builds the pages."""

import ast
import inspect
import re
from pathlib import Path

project = "Penstock"
copyright = "the Penstock authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
exclude_patterns = ["build"]
myst_heading_anchors = 3
# Quotes in tables are part of values, to be copied.
smartquotes = False

# Docstrings write code in single backticks; a public name in them becomes a link.
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# The compiled objects have none in their docstrings; see `sign`.
autodoc_docstring_signature = False
# The newer form of Sphinx 9.0 fails if `sign` gives a signature to an object that has none.
autodoc_use_legacy_class_based = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
viewcode_line_numbers = True

html_static_path = ["_static"]
html_css_files = ["penstock.css"]
html_title = "Penstock"
html_logo = html_favicon = "_static/mark.svg"

KERNEL_TYPES = Path(__file__).parents[1] / "core" / "penstock" / "_kernel.pyi"


def compiled_signatures() -> dict[str, str]:
    """Return the signatures in the compiled kernel's type file, as `put` or `Producer.put`: the object has none."""
    found: dict[str, str] = {}
    for node in ast.parse(KERNEL_TYPES.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in inner:
            if isinstance(each, ast.FunctionDef):
                arguments = ast.unparse(each.args)
                if prefix:
                    arguments = arguments.removeprefix("self").removeprefix(", ")
                returned = f" -> {ast.unparse(each.returns)}" if each.returns else ""
                found[f"{prefix}{each.name}"] = f"({arguments}){returned}"
    return found


SIGNATURES = compiled_signatures()


def sign(app, what, name, obj, options, signature, returned):
    """Give a compiled object the signature of the type file; only `penstock.open` makes a store."""
    if name == "penstock.Store":
        return "", None
    if inspect.isclass(obj) and obj.__module__ == "penstock._kernel":
        found = SIGNATURES.get(f"{obj.__name__}.__init__", "").partition(" -> ")[0]
    else:
        owner = getattr(obj, "__objclass__", None)
        named = f"{owner.__name__}.{obj.__name__}" if owner else getattr(obj, "__name__", "")
        is_ours = getattr(owner or obj, "__module__", "") == "penstock._kernel"
        found = SIGNATURES.get(named, "") if is_ours else ""
    if not found:
        return None
    arguments, _, result = found.partition(") -> ")
    return arguments.removesuffix(")") + ")", result or None


def keep_colons(app, what, name, obj, options, lines):
    """Mark code with a colon as a literal, before Google's style takes what is before the colon for a type."""

    def marked(found: re.Match[str]) -> str:
        return f"`{found[0]}`" if ":" in found[0] and not found[0].startswith("``") else found[0]

    lines[:] = re.sub(r"``[^`]+``|`[^`]+`", marked, "\n".join(lines)).split("\n")


def setup(app):
    """Connect the signatures, and what prepares docstrings before Sphinx's reader of Google's style."""
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
