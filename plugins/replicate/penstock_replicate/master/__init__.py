"""The master: sends the log to any number of copies, and says what became of the puts that wait for them.

One thread runs one event loop; whatever is not said to be safe from any thread is used in that thread only.

In reading order: `ha` (the strategy); `ha_options`; `loop_thread`; `lineage` (history and epochs); `listener` (accepts connections, and
finds out what they speak); `parts` (what all connections share); `peer_link` (one connection); `copies` (how far each copy is, and which are in sync); `waiting` (puts that
wait); `plain_sender` (to RocketMQ slaves), `record_starts` (where it may cut); `frame_sender` (to Penstock followers), with `handshake`,
`admission` (may it go on from there?), `side_feed` (files beside the log), `coverage` (checksums of records), `compressing`, `bandwidth`.
"""
