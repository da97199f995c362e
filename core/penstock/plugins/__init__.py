"""Finds the installed strategies, and looks them up by name.

In reading order: `hookspecs` (hooks that a plugin may implement), `loading` (finds and imports plugins, and checks
their hooks), `registry` (checks what they offer, lookup).
"""
