"""Feeds the dispatchers: follows the log, and rebuilds their files beside the store.

In reading order: `tail_follower` (passes new records to dispatchers), `rebuild` (log and dispatchers of a store that is
not open, new files that are swapped in, and which records get no queue).
"""
