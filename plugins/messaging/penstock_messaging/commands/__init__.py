"""The commands that this package adds to `penstock`: `dlq` (dead letters). Imported only when a command is looked up by name."""
