# Deliveries: what a consumer delivers of stored messages. They are made, delivered and answered many at a time, since a
# call for each message would cost more than everything else that is done with it.

from cpython.object cimport PyTypeObject

cdef tuple NO_ARGUMENTS = ()


cdef class Delivery:
    """One delivery of a message; the base of a consumer's own class. Its owner protects it by a lock.

    Attributes:
        stored: the message.
        topic: the topic that it is shown under.
        attempt: which delivery of the message it is, from 1 on.
        flight: the queue it was read from, as the consumer keeps it.
        offset: its offset in that queue.
        state: a number of the consumer's own; 0 at first.
        by: who has it.
        since_ns: since when.
    """

    cdef readonly object stored, topic, flight
    cdef readonly int64_t offset
    cdef public int64_t attempt, since_ns, state
    cdef public object by

    def __init__(self, stored, topic, int64_t attempt, flight, int64_t offset):
        self.stored, self.topic, self.attempt, self.flight, self.offset = stored, topic, attempt, flight, offset

    @property
    def body(self):
        """The body."""
        if type(self.stored) is StoredMessage:
            return (<StoredMessage>self.stored).inside
        return self.stored.body


def deliver(type kind not None, list messages not None, topic, flight, dict opened not None):
    """Return the first delivery of each message, in a list; each is also added to `opened`, under its offset.

    Args:
        kind: the class of the deliveries, a subclass of `Delivery`; its `__init__` is not called.
        messages: stored messages.
        topic: the deliveries' topic.
        flight: the deliveries' flight.
        opened: offset to delivery.
    """
    cdef list made = []
    cdef Delivery each
    if not issubclass(kind, Delivery):
        raise TypeError(f"{kind} is no class of deliveries")
    for stored in messages:
        each = <Delivery?>(<PyTypeObject *>kind).tp_new(kind, <PyObject *>NO_ARGUMENTS, NULL)
        each.stored, each.topic, each.flight, each.attempt = stored, topic, flight, 1
        if type(stored) is StoredMessage:
            each.offset = get64((<StoredMessage>stored).start() + 20)
        else:
            each.offset = stored.queue_offset
        made.append(each)
    for each in made:
        opened[each.offset] = each
    return made


def hand_out(
    list deliveries not None, int64_t before, int64_t after, by, int64_t since_ns, dict out not None, until_ns
):
    """Give deliveries to `by`, if all have the state `before`: then they have the state `after`, and are in `out`.

    Returns:
        False if one has another state; then nothing was changed.
    """
    cdef Delivery each
    for given in deliveries:
        if (<Delivery?>given).state != before:
            return False
    for each in deliveries:
        each.by, each.since_ns, each.state = by, since_ns, after
        out[each] = until_ns
    return True


def of_one_flight(list deliveries not None, type kind not None):
    """Return the flight of deliveries, if all are of a class and have the same; else None."""
    flight = None
    for given in deliveries:
        if type(given) is not kind or not isinstance(given, Delivery):
            return None
        if flight is None:
            flight = (<Delivery>given).flight
        elif (<Delivery>given).flight is not flight:
            return None
    return flight


def open_offsets(list deliveries not None, dict opened not None):
    """Return the offsets of open deliveries, ascending, without repetitions: a range if they are consecutive."""
    cdef int64_t first = 0, following = 0
    cdef bint is_run = True
    for given in deliveries:
        if (<Delivery?>given).offset not in opened:
            is_run = False
        elif following == 0:
            first, following = (<Delivery>given).offset, (<Delivery>given).offset + 1
        elif (<Delivery>given).offset == following:
            following += 1
        else:
            is_run = False
    if is_run:
        return range(first, following)
    return sorted({(<Delivery>given).offset for given in deliveries if (<Delivery>given).offset in opened})


def finish(list deliveries not None, dict opened not None, dict out not None, int64_t state):
    """Remove messages from `opened` and `out`, and give their deliveries a last state; does nothing for those not open.

    A message that was delivered again is finished as well, with its current delivery.
    """
    cdef Delivery each
    for given in deliveries:
        each = <Delivery?>given
        current = opened.pop(each.offset, None)
        if current is not None:
            out.pop(current, None)
            (<Delivery?>current).state = each.state = state
