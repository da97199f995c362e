"""Composition: from a configuration to a running store, its lifecycle, and the public class.

In reading order: `open` (opens the store at a path), `open_several`, `choices` (the configuration completed for one store), `engine` (the
writing half), `background` (its threads' work), `put_batch`, `message_batch` (messages
added one by one), `shutdown`, `consumer_offsets` and `offset_table`, `store` (the public class),
`lowlevel` (its calls for extensions, Spark and tools), `requests` (what other processes ask the writer to do) and `asking` (how they ask).
"""
