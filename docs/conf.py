"""Sphinx settings; `make docs` builds the pages."""

project = "Penstock"
copyright = "the Penstock authors"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["build"]
html_extra_path = ["extra"]
myst_heading_anchors = 3
