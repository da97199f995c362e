"""Reads messages or Arrow batches through queue entries. Changes nothing on disk.

In reading order: `one_queue` (messages of one queue), `reader` (in the order stored, by key, by id, by time, as
columns), `filters` (tags, keys, and what a read is asked for), `key_search`, `spans` (multiple queues in the order of
the log), `to_arrow`, `queues` (those that can be read, and their space).
"""
