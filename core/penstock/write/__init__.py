"""Encodes messages or Arrow tables into a batch. Takes no lock and does not write the log.

In reading order: `validation` (which messages are refused, copies, and messages with a delay or a partition key),
`from_arrow`, `staged_file` (encoded records in files, to be appended later).
"""
