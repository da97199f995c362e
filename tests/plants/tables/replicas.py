"""Faults in what a master and its copies say to each other, and in what counts as a copy."""

from tests.plants.planting import Plant

STORY = "tests/replicas/test_pair.py::test_stories_of_a_master_and_its_copy[0]"
ENDS = "tests/replicas/test_following.py"
COPIES = "tests/replicas/test_copies.py"
PLANTS = {
    "data-unchecked": Plant(
        "the log's bytes are believed though a bit of them has flipped on the way",
        "penstock_replicate.wire",
        "                if stop < 0:",
        "                if stop == -3:\n"
        "                    stop = start + _HEADER_BYTES + int.from_bytes(view[start : start + _KIND_AT])\n"
        "                if stop < 0:",
        (
            "tests/replicas/test_wire.py::test_a_garbled_stream_ends_in_a_violation_or_a_prefix_of_what_was_sent",
        ),
    ),
    "hello-counts": Plant(
        "what a copy has on connecting counts as acknowledged",
        "penstock_replicate.master",
        "self._copy = self._copies.join(self._store, self._address, begins)",
        "self._copy = self._copies.join(self._store, self._address, begins)\n"
        "        self._copies.acked(self._copy, position, position)",
        (f"{ENDS}::test_only_acknowledgements_after_it_was_accepted_count",),
    ),
    "epochs-by-place": Plant(
        "two lists of epochs are compared by their places",
        "penstock_replicate.follower",
        "    common = [epoch[:2] for epoch in mine if epoch in both]",
        "    common = [one[:2] for one, other in zip(mine, theirs) if one == other]",
        (f"{ENDS}::test_lists_of_epochs_say_where_two_logs_part[the oldest are dropped]",),
    ),
    "epochs-up-to-the-end": Plant(
        "a copy notes the epochs up to its end only, though bytes of later ones come",
        "penstock_replicate.follower",
        '            epochs=master["epochs"],',
        '            epochs=tuple(epoch for epoch in master["epochs"] if epoch.start <= self._next),',
        (STORY,),
    ),
    "two-lines-count-twice": Plant(
        "a store that connects anew counts beside its last connection",
        "penstock_replicate.copies",
        "        if store in self._copies:",
        '        store += f" {len(self._copies)}"\n        if store in self._copies:',
        (f"{COPIES}::test_no_put_that_waits_is_answered_by_fewer_stores_than_it_needs",),
    ),
    "received-for-flushed": Plant(
        "a put that waits for disks is told when its bytes are received",
        "penstock_replicate.copies",
        "copy.flushed if self._is_for_disk else copy.received",
        "copy.received",
        (f"{COPIES}::test_a_put_waits_for_what_was_promised[disk-40]",),
    ),
}
