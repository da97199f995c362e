"""Finds corruption, and changes nothing in the log.

In reading order: `segment_digests` (what a segment held when it was full), `sealer` (makes them), `scrubber` (reads segments
against them), `background` (runs both), `metadata_checks`, `copy_findings`, `verification`, `parallel`.
"""
