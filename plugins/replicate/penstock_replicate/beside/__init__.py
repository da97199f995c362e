"""What travels beside the log: the small files that a promoted store needs to go on as its master did.

Rule: only the names of `side_names` are ever read or written, and no content is written that was not checked.

A file may say that something is done, such as a delivery, whose records a follower does not have yet. So the content of a file is
taken together with an end of the log that is read after it, and it is written on a follower once that log is on disk there
(`waiting_sides`).

In reading order: `side_names` (which files, and what each must hold), `snapshot` (reading them, on a master), `applying` (writing
them, on a follower), `waiting_sides` (what waits for the log).
"""

from penstock_replicate.beside.applying import apply
from penstock_replicate.beside.snapshot import SideReader, snapshot
from penstock_replicate.beside.waiting_sides import WaitingSides

__all__ = ["SideReader", "WaitingSides", "apply", "snapshot"]
