"""Selects the segments to delete, and deletes them.

In reading order: `runner` (asks the policies, deletes), `forecast` (which segments the policies will expire, hour by hour).
"""
