"""The only folder that syncs the log, and the small files that record how far it is synced.

In reading order: `log_flusher` (syncs, and notifies the waiters), `checkpoint` (RocketMQ's file), `progress` (Penstock's
file), `side_folder` (the folder `penstock/`, and which program wrote last), `written_ranges` (which ranges of the log
Penstock wrote), `removed_topics` (which topics were removed), `replication_file` (what is known of copies), `manifest` (summaries of the dispatchers' files at a clean close).
"""
