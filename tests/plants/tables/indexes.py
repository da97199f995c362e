"""Faults in the built-in queues and the index of keys: trimming and cutting."""

from tests.plants.planting import Plant

CONTRACT = "tests/contract/test_builtin.py"
TRIM = "tests/unit/retention/test_runner_trimming.py"
TRUNCATE = "tests/unit/recovery/test_restore_truncation.py"
QUEUE_TRIM = f"{CONTRACT}::TestConsumeQueue::test_trim_takes_no_entry_too_many_and_none_too_few"
PLANTS = {
    "queue-trim-one-too-few": Plant(
        "a queue's trim leaves an entry whose record is gone",
        "penstock_index.queue_state",
        "self.min_offset = self.folder.first_from(log_offset, self.min_offset, self.max_offset)",
        "self.min_offset = max(self.folder.first_from(log_offset, self.min_offset, self.max_offset) - 1, self.min_offset)",
        (
            QUEUE_TRIM,
            f"{TRIM}::test_a_queue_file_goes_when_its_last_record_has_gone_and_not_before[200-2]",
        ),
    ),
    "queue-trim-one-too-many": Plant(
        "a queue's trim takes the first entry whose record is left",
        "penstock_index.queue_files",
        "found = np.nonzero(effective(entries) >= max(log_offset, 0))[0]",
        "found = np.nonzero(effective(entries) > max(log_offset, 0))[0]",
        (
            QUEUE_TRIM,
            f"{TRIM}::test_a_queue_file_goes_when_its_last_record_has_gone_and_not_before[1-3]",
        ),
    ),
    "queue-file-early": Plant(
        "a queue file goes while its last record is left",
        "penstock_index.queue_state",
        "if folder.stop_of(base) <= self.min_offset]",
        "if folder.stop_of(base) <= self.min_offset + 1]",
        (
            QUEUE_TRIM,
            f"{TRIM}::test_a_queue_file_goes_when_its_last_record_has_gone_and_not_before[199-3]",
        ),
    ),
    "queue-file-late": Plant(
        "a queue file stays though its last record has gone",
        "penstock_index.queue_state",
        "if folder.stop_of(base) <= self.min_offset]",
        "if folder.stop_of(base) < self.min_offset]",
        (f"{TRIM}::test_a_queue_file_goes_when_its_last_record_has_gone_and_not_before[200-2]",),
    ),
    "lost-file-hides-the-next": Plant(
        "a queue file that is lost hides the entries of later ones",
        "penstock_index.queue_files",
        "at = min((base for base in self.bases if base > at), default=high)",
        "at = high",
        (f"{TRIM}::test_a_queue_file_that_is_lost_hides_no_later_one",),
    ),
    "queue-begins-again": Plant(
        "a queue whose records were all cut begins at 0 again",
        "penstock_index.queue_files",
        "return self._over_blanks(low, high)",
        "return low",
        (f"{TRIM}::test_a_queue_whose_records_are_all_cut_goes_on_where_they_began",),
    ),
    "index-file-early": Plant(
        "an index file goes while its last record is left",
        "penstock_index.hash_index",
        "                if end >= log_offset:\n                    break\n",
        "                if end > log_offset:\n                    break\n",
        (f"{TRIM}::test_an_index_file_goes_when_its_last_record_has_gone_and_not_before[0]",),
    ),
    "index-cut-goes-on-elsewhere": Plant(
        "after a cut the index goes on in a new file, though the newest has room",
        "penstock_index.hash_index",
        "self._current = self._folder.open(names[-1]) if names else None",
        "self._current = None",
        (f"{TRUNCATE}::test_index_files_are_those_of_a_log_that_was_never_longer[130]",),
    ),
    "index-cut-unsynced": Plant(
        "what a cut keeps of the newest index file is believed durable, and was never synced",
        "penstock_index.hash_index",
        "                self._current.sync()\n            self._close_current()\n            if self._cut",
        "                pass\n            self._close_current()\n            if self._cut",
        (f"{TRUNCATE}::test_what_is_kept_of_an_index_file_is_durable_after_the_next_flush",),
    ),
    "queue-cut-keeps-one": Plant(
        "a cut leaves the entry of the first record that is gone",
        "penstock_index.queue_files",
        "below = np.nonzero((offsets >= 0) & (offsets < log_offset))[0]",
        "below = np.nonzero((offsets >= 0) & (offsets <= log_offset))[0]",
        (f"{TRUNCATE}::test_queue_files_are_those_of_a_log_that_was_never_longer[600]",),
    ),
}
