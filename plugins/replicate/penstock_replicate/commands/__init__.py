"""The commands that this package adds to `penstock`, one module each. They are imported only by the command line.

`replica`: the roles of a store: status, follow, promote.
"""
