"""The follower: copies the log of a master, and answers how far it is.

In reading order: `follow` (the public call); `options` (its arguments); `follower` (the thread that connects again and again);
`local_store` (this side's store, its role and history); `connecting` (what the master speaks); `frame_session` and `plain_session` (one
connection to a Penstock and to a RocketMQ master); `agreement` and `comparing` (does this log continue the master's, and where do they
part); `landing` (bytes into the log, and on disk); `standing` (what is known, for other threads); `channel` (bytes of one connection);
`refusals` and `trouble` (what ends the following, and what only a connection).
"""
