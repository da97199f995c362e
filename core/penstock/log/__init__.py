"""The commit log: segments, the append path, and every way to read the log by log offset.

In reading order:

* a log of files: `segment` (one file), `segmented_log` (all of them as one range of bytes);
* appending: `commit_log` (the append lock, the segment that takes records, and the next queue offset), `copied_bytes`
  (records of another log, which arrive in pieces);
* reading: `scan` (valid records, window by window, and the marks of atomic batches), `record_reader` (one record by its
  offset);
* corruption: `queue_evidence` (whether a record is genuine, by queue entries and offsets), `resync` (the next valid
  record after corrupt bytes, and scans that continue there).
"""
