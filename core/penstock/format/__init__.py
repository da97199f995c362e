"""The bytes of one record, in memory: encode, decode, validate. Uses no file, no clock, no lock.

In reading order: `record` (the layout, in plain Python), `properties` (its text of names and values), `validity` (when
a record is valid), `arrays` (numpy, imported at its first use), `columns` (many records at once, as numpy columns that
the compiled kernel fills), `hashes`, `names` (topics, queues, and the files named after them), `arguments` (checks of
what public calls are given), `times` (as text), `arrow_schema`, `rocketmq_json`.
"""
