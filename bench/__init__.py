"""Figures for Penstock beside other embedded engines, in one run: `python -m bench`."""
