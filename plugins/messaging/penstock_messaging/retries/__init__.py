"""Messages that a group has refused: the copies that are retried, and the dead letters.

A copy is made here and stored elsewhere. In reading order: `copies` (a refused message as a retry or dead letter, which
is pure computation), `stored_retries` (with the configuration of a store), `dead_letters` (listing and replaying them).
"""
