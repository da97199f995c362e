"""Deliveries of stored messages: created, delivered and answered many at a time by the compiled kernel.

For extensions with consumers: a call for each message would cost more than everything else that is done with it.
"""

from penstock._kernel import Delivery, deliver, finish, hand_out, of_one_flight, open_offsets

__all__ = ["Delivery", "deliver", "finish", "hand_out", "of_one_flight", "open_offsets"]
