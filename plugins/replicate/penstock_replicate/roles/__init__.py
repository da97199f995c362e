"""Who is master and who follows: what each process says of it, and how a follower becomes a master.

In reading order: `status_file` (the file in which a master or a follower says once a second how far it is); `master_status` (writes it for a
master); `wording` (the same in one line); `requests` (how a command reaches the process that follows); `promotion` (turns a follower into a master, and says before what may
be lost).
"""
