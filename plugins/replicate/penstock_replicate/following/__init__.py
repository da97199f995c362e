"""The follower: copies the log of a master, and answers how far it is.

In reading order: `comparing` (does this log continue the master's, and where do they part); `channel` (one connection).
"""
