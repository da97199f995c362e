"""Sphinx settings; `make docs` builds the pages."""

project = "Penstock"
copyright = "the Penstock authors"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["build"]
myst_heading_anchors = 3
