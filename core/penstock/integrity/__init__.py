"""Detects corruption; changes nothing in the log.

In reading order: `segment_digests` (checksums of full segments), `sealer` (computes them), `scrubber` (compares segments
with them), `background` (runs both), `metadata_checks`, `batch_check` (atomic batches), `copy_findings`, `verification`, `parallel`.
"""
