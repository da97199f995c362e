"""What this package adds to the `penstock` command; the only folder of it that prints. Each module is a command.

`replica`: the roles of a store: status, follow, promote.
`restore`: makes a store from what the replicator `ship` has shipped.
"""
