"""The one place that syncs the log, and the small files that say how far it is synced.

In reading order: `log_flusher` (sync, and who waits for it), `checkpoint` (RocketMQ's file), `progress` (Penstock's), `side_folder`
(the folder `penstock/` and who wrote last), `written_ranges` (which ranges Penstock wrote), `manifest` (what dispatchers
note at a clean close).
"""
