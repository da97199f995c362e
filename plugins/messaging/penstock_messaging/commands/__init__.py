"""The commands that this package adds to `penstock`. They are imported only by the command line.

`topic`: the configuration of topics.
"""
