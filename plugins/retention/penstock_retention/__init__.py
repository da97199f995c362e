"""Retention policies: they decide which segments are deleted."""
