"""`Checker` and `Finding`, under the name that plugins of version 0.1 import them by; see `penstock.contracts`."""

from penstock.contracts.findings import Checker, Finding

__all__ = ["Checker", "Finding"]
