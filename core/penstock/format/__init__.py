"""The bytes of one record, in memory: encode, decode, validate. No file, no clock, no lock.

In reading order: `record` (the layout, in plain Python), `properties` (its text of names and values), `validity` (what
makes it valid), `columns` and `text_columns` (many records at once, as numpy columns of the compiled kernel's work),
`java_hash`, `names` (topics, queues, and the files named after them), `arrow_schema`, `rocketmq_json`.
"""
