"""Transactions: messages that are stored together, and the acknowledgements that are decided with them.

In reading order: `decision_file` (what was decided, on disk), `decided_acks` (decided acknowledgements that a journal
lacks), `deciding` (stores messages and acknowledges others, both or neither), `batch` (of one `with` block).
"""
