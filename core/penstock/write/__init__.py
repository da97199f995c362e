"""Encodes messages or Arrow tables into a batch. Takes no lock and does not write the log.

In reading order: `validation` (which messages are refused), `copies` (with a properties text taken over), `rewriting`
(messages with a delay, or without a queue number), `from_arrow`, `staged_file` (encoded records in files, to be appended later).
"""
