"""The commit log: segments, the append path, and every way to read the log by log offset.

In reading order:

* a log of files: `segment` (one file), `segmented_log` (all of them as one range of bytes), `log_view` (as dispatchers see it);
* appending: `queue_cursors` (the next queue offset), `atomic_batches` (marks of records that are stored together), `log_tail`
  (the segment that takes records), `commit_log` (the append lock), `decided` (the transactions in the log);
* reading: `scan` (valid records, window by window), `batches` (the same for dispatchers), `record_reader` (one
  record by its offset);
* corruption: `queue_continuity` and `entry_witness` (evidence that a record is genuine), `resync` (the next valid record after
  corrupt bytes), `salvage` (a scan that continues there), `offset_context` (what is at an offset where no record begins).
"""
