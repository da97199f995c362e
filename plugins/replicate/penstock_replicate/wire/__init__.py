"""What travels on a replication connection, as bytes in memory: no socket, no file, no clock. Both sides use it.

In reading order: `limits` (sizes that neither side may exceed, and `WireViolation`); `plain` (RocketMQ's own protocol, and how two
Penstock peers find out that they are); `frames` (what two Penstock peers say to each other); `decoding` (a stream of them, in bounded
memory); `proof` (the shared secret); `tls`.
"""
