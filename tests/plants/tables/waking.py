"""Faults in waking: who is woken, when, and what a follower makes of a word that is not right."""

from tests.plants.planting import Plant

WAKING = "tests/unit/runtime/test_waking.py"
FEEDS = "tests/unit/dispatch/test_tail_follower.py"
PLANTS = {
    "wake-word-lost": Plant(
        "a word that is no longer in the file is taken for one that somebody has set back",
        "penstock.runtime.waking",
        "        if len(data) < 4:",
        "        if len(data) < 0:",
        (f"{WAKING}::test_a_file_that_is_cut_short_is_an_error_to_who_waits[10]",),
    ),
    "wake-never-doubted": Plant(
        "a follower whom nobody wakes goes on sleeping long",
        "penstock.runtime.waking",
        "            self._arrive = False",
        "            self._arrive = True",
        (f"{WAKING}::test_where_nobody_wakes_a_follower_sleeps_short_until_somebody_does",),
    ),
    "wake-other-boot": Plant(
        "a writer on another machine is expected to wake",
        "penstock.runtime.waking",
        "file is None or (is_known and file.pread(len(head), 0) == head)",
        "file is None or is_known",
        (f"{WAKING}::test_a_file_of_another_start_of_the_machine_is_not_trusted",),
    ),
    "wake-old-file": Plant(
        "a follower sleeps on a file that is no longer the store's",
        "penstock.runtime.waking",
        "and known.inode != self._inode():",
        "and known.inode == 0:",
        (f"{WAKING}::test_a_follower_goes_over_to_a_file_that_was_put_in_the_place_of_the_first",),
    ),
    "wake-when-appended": Plant(
        "under a policy that waits nobody wakes the tail follower when a message is durable",
        "penstock.store.engine",
        "        if self._waits and not self._log.appender.is_pausing:",
        "        if not self._waits and not self._log.appender.is_pausing:",
        (
            f"{WAKING}::test_under_a_policy_that_waits_the_follower_is_woken_when_the_message_is_durable",
        ),
    ),
    "wake-put-forgotten": Plant(
        "a put that came within the tail follower's round is dispatched with the next one",
        "penstock.store.engine",
        "        if follower.progress < self._log.end_offset:\n            appender",
        "        if follower.progress > self._log.end_offset:\n            appender",
        (f"{WAKING}::test_a_put_within_the_round_is_not_forgotten",),
    ),
    "queue-file-gone-unnoticed": Plant(
        "a reader goes on with a queue file that another process has removed",
        "penstock_index.queue_state",
        "not (folder.is_current(high - 1) and folder.is_current(low)):",
        "not folder.is_current(high - 1):",
        (f"{FEEDS}::test_a_reader_looks_again_where_entries_are_taken_away[the first file]",),
    ),
}  # fmt: skip
