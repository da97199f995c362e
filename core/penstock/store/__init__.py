"""Composition: from a configuration to a running store, its lifecycle, and the public class.

In reading order: `open` (from a path to a store), `open_several`, `choices` (what a configuration means for one store), `engine` (the
writing half), `put_batch`, `shutdown`, `consumer_offsets` and `offset_table`, `store` (the public class).
"""
