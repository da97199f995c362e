"""Faults in the kernel: votes, feeds, counting, cutting."""

from tests.plants.planting import Plant

VOTES = "tests/unit/test_votes.py"
PLANTS = {
    "votes-added-up": Plant(
        "the votes of two policies are added up",
        "penstock.retention",
        "return Verdict(largest.expired_count, reason, refusal, failed)",
        "return Verdict(sum(v.expired_count for v in votes), reason, refusal, failed)",
        (
            f"{VOTES}::test_votes_are_not_added_up[counts0-3]",
            f"{VOTES}::test_two_policies_of_a_store_take_what_the_larger_vote_names",
        ),
    ),
    "first-policy-decides": Plant(
        "only the first policy may refuse writes",
        "penstock.retention",
        "refusal = next((vote.reason for vote in votes if vote.refuse_writes), None)",
        "refusal = votes[0].reason if votes[0].refuse_writes else None",
        (f"{VOTES}::test_any_policy_may_refuse_writes_and_the_first_that_does_says_why",),
    ),
}
