"""Consumers: delivering messages of the queues that a member of a group has, and recording the answers.

In reading order: `selection` (which topics), `consumer_options` (checked arguments), `queue_rights` (what this folder
needs from `groups`), `consumed_message` (a message that was delivered), `in_flight` (which messages are fetched,
delivered and answered), `fetching` (reads messages ahead), `assigned_queues` (the queues that a consumer has),
`answers` (acknowledged, refused, released), `consumer` (the class that programs use), `transaction_acks` (answers that
a transaction gives), `workers` (`Consumer.run`), `broadcast` (all to everyone), `open_consumers` (of one store).
"""
