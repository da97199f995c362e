"""`pip install 'penstock[docs]'`: a page in the settings of this project's documentation is built."""

import importlib.metadata
from pathlib import Path

import furo
import myst_parser
from sphinx.application import Sphinx

Path("docs").mkdir()
Path("docs", "conf.py").write_text('extensions = ["myst_parser"]\nhtml_theme = "furo"\n')
Path("docs", "index.md").write_text("# Penstock\n\nA page.\n")
made = Sphinx("docs", "docs", "built", "trees", "html", status=None, warningiserror=True)
made.build()
assert made.statuscode == 0
assert "furo" in Path("built", "index.html").read_text()
assert furo.__version__
assert myst_parser.__version__
assert importlib.metadata.version("penstock")
