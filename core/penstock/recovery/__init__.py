"""Recovery of a store when it is opened. Inspection and changes are in separate modules; inspection is first.

In reading order: `store_layout` (is this a store, its sizes, and files that Penstock does not understand), `log_end`
(where the valid records end), `inspection` (which files can be trusted; changes nothing), `restore` (first changes).
"""
