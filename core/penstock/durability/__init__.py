"""The only folder that syncs the log, and the small files that record how far it is synced.

In reading order: `log_flusher` (syncs, and notifies the waiters), `progress` (RocketMQ's checkpoint and Penstock's
progress file), `side_folder` (the folder `penstock/`, which program wrote last, removed topics, and summaries of the
dispatchers' files at a clean close), `written_ranges` (which ranges of the log Penstock wrote), `replica_file` (whether
the store is a copy, or has copies).
"""
