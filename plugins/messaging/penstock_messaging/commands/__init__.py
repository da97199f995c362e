"""The commands that this package adds to `penstock`, one module each. They are imported only by the command line.

`topic`: the configuration of topics. `groups`: consumer groups, how far they are, their members. `dlq`: dead letters.
`delayed`: messages that wait for a time. `transactions`: prepared messages.
"""
