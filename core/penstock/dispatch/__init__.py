"""Feeds the dispatchers: following the log, and rebuilding their files beside the store.

In reading order: `tail_follower` (new records to dispatchers), `deleted_topics` (which records get no queue), `store_view` (log
and dispatchers of a store that is not open), `rebuild` (new files, then the swap).
"""
