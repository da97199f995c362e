"""Finds the installed strategies, and picks one by its name.

In reading order: `hookspecs` (what a plugin may implement), `registry` (entry points, checks, picks).
"""
