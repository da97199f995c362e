"""Resolves paths to stores, and opens them read-only.

In reading order: `dataset` (several stores under one folder), `remote_files` (the files of a store at a URL), `locations` (from
paths, patterns and URLs to stores), `open`.
"""
