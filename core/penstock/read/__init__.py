"""Reads messages or Arrow batches through queue entries. Changes nothing on disk.

In reading order: `reader` (messages of one queue, by key, by id, by time), `checked_ranges` (its arguments), `key_search`, `filters` (tags and keys), `column_reader` (what
a reader returns as columns), `span_merge` (multiple queues in the order of the log), `span_messages`, `to_arrow`, `topic_usage`, `served_queues`
(the queues that can be read if others are not understood).
"""
