"""Selects the segments to delete, and deletes them.

`runner` asks the policies, deletes, and forecasts which segments the policies will expire, hour by hour.
"""
