"""From queue entries to messages or Arrow batches. Changes nothing on disk.

In reading order: `reader` (messages of one queue, by key, by id, by time), `key_search`, `filters` (tags and keys), `column_reader` (the
same as columns), `span_merge` (several queues in the order of the log), `to_arrow`, `topic_usage`, `served_queues`
(which queues are shown where others are not understood).
"""
