"""Feeds the dispatchers: follows the log, and rebuilds their files beside the store.

In reading order: `tail_follower` (passes new records to dispatchers), `deleted_topics` (which records get no queue), `store_view` (log
and dispatchers of a store that is not open), `rebuild` (builds new files, then swaps them in).
"""
