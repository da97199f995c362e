"""Groups across processes, without a server: who may consume which queue, and how far each group is.

Everything is in files below `penstock/groups`, see `paths`. Each queue has one owner at a time, the holder of its lock;
only the owner appends to the queue's journal, and only the process that holds the store for writing takes journals in.
No part waits for another process: what is not free is tried again a second later; a member that answers wakes
the writer.

In reading order: `paths`; `store_id`; a journal's bytes (`entries`), what they amount to (`fold`), and its owner's side
(`journal`); what the writer has taken in (`marks`), and what all of that means together (`position`); the right to a
queue (`queue_lock`, `owned_queue`); the groups of a store (`taking`); who consumes what (`members`, `assignment`,
`starts`, `claims`); the writer's service (`intake`, with `journal_cursor`, `retries_made`); and a look at all groups
(`overview`), and moving or deleting one from outside (`reset`).
"""
