"""Transactions: messages that are stored together.

In reading order: `batch` (the messages of one `with` block).
"""
