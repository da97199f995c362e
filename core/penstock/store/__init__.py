"""Composition: from a configuration to a running store, its lifecycle, and the public class.

In reading order: `open` (opens stores at their paths: the configuration completed for one store, and its parts
connected), `engine` (the writing half, its threads' work, and its clean close), `copying` (what a replicator gets, and
puts that wait for copies), `queue_cursors` (where messages are put), `batches` (messages stored together),
`consumer_offsets`, `extension_calls` (what extensions provide of the public class), `store` (the public class),
`lowlevel` (its calls for extensions, Spark and tools), `requests` (what other processes ask the writer to do), `asking`
(how they ask) and `following` (a copy that takes another store's bytes).
"""
