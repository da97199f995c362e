"""The indexes derived from the log: consume queues and the hash index."""
