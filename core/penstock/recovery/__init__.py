"""Opening after whatever happened. Inspection first, then changes, in modules that never mix.

In reading order: `store_layout` (is this a store, and with which sizes), `foreign_content` (what Penstock does not understand),
`log_end` (where the valid records end), `inspection` (how much to believe; changes nothing), `restore` (the first changes).
"""
