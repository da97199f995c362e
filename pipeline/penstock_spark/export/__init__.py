"""Messages as Parquet files: what the job `export` and the retention policy `archive` write, and the job `replay` reads.

In reading order: `export_folder` (the files, and which messages they hold), `archive` (the retention policy).
"""
