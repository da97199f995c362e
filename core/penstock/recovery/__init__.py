"""Recovery of a store when it is opened. Inspection and changes are in separate modules; inspection is first.

In reading order: `store_layout` (is this a store, and with which sizes), `foreign_content` (files that Penstock does not understand),
`log_end` (where the valid records end), `inspection` (which files can be trusted; changes nothing), `hidden_batch` (what
readers do not see until then), `restore` (the first changes), `cutting` (what a follower
changes at its log's ends).
"""
