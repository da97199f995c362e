"""Detects corruption; changes nothing in the log.

In reading order: `segment_digests` (checksums of full segments), `upkeep` (computes and compares them in the
background), `checks` (of metadata files, atomic batches and copies), `verification`.
"""
