"""Which segments are deleted, and deleting them.

In reading order: `runner` (asks the policies, deletes), `forecast` (which segments the policies will expire, hour by hour).
"""
