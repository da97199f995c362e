"""Retention policies: what may go."""
