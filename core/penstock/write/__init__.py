"""From messages or Arrow tables to an encoded batch. Takes no lock and writes no log.

In reading order: `validation` (what is refused of a message), `from_arrow`, `staged_file` (encoded records in files that wait to be
appended).
"""
