"""Which segments are deleted, and deleting them.

In reading order: `runner` (asks the policies, deletes), `forecast` (what they will answer, hour by hour).
"""
