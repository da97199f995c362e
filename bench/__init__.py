"""Measures Penstock and other embedded engines in one run: `python -m bench`."""
