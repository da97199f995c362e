"""What this package adds to the `penstock` command; the only folder of it that prints.

`restore` makes a store from what the replicator `ship` has shipped.
"""
