"""Prepared messages: stored, and visible only once they are committed; in the form of RocketMQ's transactions.

In reading order: `half_message` (the records), `half_queue` (which are open, read from the store's queues),
`open_halves` (those of the process that writes: prepare, commit, roll back), `check_back` (asks the program about old
ones), `handle` (the object that a caller has), `shown` (what commands show).
"""
