"""Faults in the kernel: votes, feeds, counting, cutting."""

from tests.plants.planting import Plant

CLOCK = "tests/faults/test_clock.py"
COUNTING = "tests/unit/log/test_queue_cursors.py"
FOLLOWING = "tests/unit/log/test_following.py"
TRUNCATE = "tests/unit/recovery/test_restore_truncation.py"
VOTES = "tests/unit/retention/test_runner.py"
PLANTS = {
    "votes-added-up": Plant(
        "the votes of two policies are added up",
        "penstock.retention.runner",
        "return RetentionDecision(going, reason, refusal, failed, ",
        "return RetentionDecision(sum(v.expired_count for v in votes), reason, refusal, failed, ",
        (f"{VOTES}::test_votes_are_not_added_up[counts0-3]",),
    ),
    "first-policy-decides": Plant(
        "only the first policy may refuse writes",
        "penstock.retention.runner",
        "refusal = next(iter(refusing.values()), None)",
        "refusal = refusing.get(policies[0].name)",
        (f"{VOTES}::test_any_policy_may_refuse_writes_and_the_first_that_does_says_why",),
    ),
    "offset-and-time-added-up": Plant(
        "segments before an offset and those before a time are added up",
        "penstock.retention.runner",
        "going = max(by_offset, self._log.count_before_time(time_ms, self._steady_now_ms()))",
        "going = by_offset + self._log.count_before_time(time_ms, self._steady_now_ms())",
        (f"{VOTES}::test_an_offset_and_a_time_that_are_both_given_are_not_added_up",),
    ),
    "segment-goes-undispatched": Plant(
        "a segment goes when its first record is dispatched",
        "penstock.retention.runner",
        "is_safe = info.base_offset + info.size <= self._keeper.safe_offset()",
        "is_safe = info.base_offset <= self._keeper.safe_offset()",
        (f"{VOTES}::test_a_segment_goes_only_when_every_dispatcher_has_all_of_it",),
    ),
    "refusal-kept-a-round": Plant(
        "writes stay refused until the next round, though there is room again",
        "penstock.retention.runner",
        "            if gone and self._commit_log.refusal is not None:",
        "            if gone and self._commit_log.refusal is None:",
        (f"{VOTES}::test_who_makes_room_need_not_wait_for_the_next_round_to_write",),
    ),
    "refusal-outlives-the-disk": Plant(
        "writes stay refused after a disk no longer told its size",
        "penstock_retention.policies",
        "            self._refuses = False\n            count",
        "            count",
        (
            "tests/unit/penstock_retention/test_policies.py::test_a_disk_that_no_longer_tells_its_size_refuses_nothing_and_nothing_afterwards",
        ),
    ),
    "one-counted-first": Plant(
        "a queue's next offset is counted before a single record that is then refused",
        "penstock.log.commit_log",
        "            self.tail.write(tail, data)\n            self.appender.last_time_ms = now\n",
        "            draft.cursor.next_offset = following\n            self.tail.write(tail, data)\n            self.appender.last_time_ms = now\n",
        (f"{COUNTING}::test_nothing_counts_that_a_full_disk_refused[one]",),
    ),
    "many-counted-first": Plant(
        "queues are counted before the columns of a batch that is then refused are written",
        "penstock.log.commit_log",
        "                self.tail.write_pieces(pieces, data)\n                self._count(batch, now)\n                self._attach",
        "                self._count(batch, now)\n                self.tail.write_pieces(pieces, data)\n                self._attach",
        (
            f"{COUNTING}::test_nothing_counts_that_a_full_disk_refused[many]",
            f"{COUNTING}::test_nothing_counts_that_a_full_disk_refused[columns]",
        ),
    ),
    "no-room-for-the-blank": Plant(
        "a record may end less than 8 bytes before its segment does",
        "penstock.log.commit_log",
        "if tail is None or draft.size + BLANK_SIZE > tail.capacity - tail.wrote_position:",
        "if tail is None or draft.size > tail.capacity - tail.wrote_position:",
        (
            f"{FOLLOWING}::test_the_last_record_of_a_segment_leaves_room_for_the_blank_one[put-3-7]",
            f"{FOLLOWING}::test_the_last_record_of_a_segment_leaves_room_for_the_blank_one[put-60-0]",
        ),
    ),
    "time-goes-back": Plant(
        "a single record's store time is not kept as the least of later ones",
        "penstock.log.commit_log",
        "            self.appender.last_time_ms = now\n            draft.cursor.next_offset = following\n            self._attach",
        "            draft.cursor.next_offset = following\n            self._attach",
        (f"{CLOCK}::test_no_way_in_goes_back_behind_what_another_stamped[counts0-file]",),
    ),
    "atomic-over-a-border": Plant(
        "an atomic batch that is a few bytes too long is split over two segments",
        "penstock.log.commit_log",
        "or (atomic and batch.size > room):",
        "or (atomic and batch.size > room + BLANK_SIZE):",
        (
            f"{FOLLOWING}::test_the_last_record_of_a_segment_leaves_room_for_the_blank_one[atomic-60-7]",
        ),
    ),
    "planned-segments-stay": Plant(
        "segments made for a batch that is then refused are left behind",
        "penstock.log.commit_log",
        "            if not pieces and self.lock.is_owned():",
        "            if not planned and self.lock.is_owned():",
        (f"{COUNTING}::test_segments_made_for_a_batch_that_is_refused_are_gone[many]",),
    ),
    "cut-not-told": Plant(
        "no dispatcher is told that the log was cut",
        "penstock.recovery.restore",
        "if end.dirty_bytes or name in was_left_out or max(durable, dispatcher.progress) > same:",
        "if False:",
        (
            f"{TRUNCATE}::test_a_torn_tail_is_told_after_loading_and_before_any_batch",
            f"{TRUNCATE}::test_a_dispatcher_that_knows_of_more_than_the_log_has_is_told",
            f"{TRUNCATE}::test_a_repair_that_cut_the_log_is_told_at_the_next_opening",
        ),
    ),
    "cut-log-is-clean": Plant(
        "a dispatcher that a repair did not rebuild may believe files for a longer log",
        "penstock.recovery.restore",
        "name in state.dispatched and durable",
        "name in recorded and durable",
        (f"{TRUNCATE}::test_a_repair_that_cut_the_log_is_told_at_the_next_opening",),
    ),
}
