"""Kinds of damage to a finished run's store, each as SQL, with words of the audit's finding."""

TREE = "(select tree_id from trees where purpose = 1 order by n limit 1)"
LEAF = f"(select n from leaves where tree_id = {TREE} order by n limit 1)"
POLICY = "(select n from policies where step = 1)"
CONSUMED, DROPPED = 4, 5

UNSCORABLE = "update scores set state = 2, value = 0, reason = 'TIMEOUT: too late'"
# Rows that a promise forbids.
_PARKED = (
    "insert into parked (digest, waits_for, tree_id, run_id, payload) values (x'01', x'02',"
    " x'03', RUN, x'')"
)
REFUSED = (
    "insert into refused (digest, tree_id, segment, reason, winner, payload)"
    " values (x'01', x'02', x'', 'STALE_EPOCH', x'', x'')"
)
_LATE = (
    "insert into late (digest, tree_id, reason, payload) values (x'01', x'02',"
    " 'SCORED_BEFORE', x'')"
)
_DEAD = (
    "insert into dead (service, stream, letter, reason, digest) values ('verifier', 'LINEAGE',"
    " x'', 'EXCEPTION: x', x'')"
)

DAMAGES = {
    # scores
    "all scores are UNSCORABLE": ([UNSCORABLE], "is UNSCORABLE: TIMEOUT"),
    "one score is UNSCORABLE": ([f"{UNSCORABLE} where n = 1"], "is UNSCORABLE: TIMEOUT"),
    "a score is missing": ([f"delete from scores where tree_id = {TREE}"], "has scores of []"),
    "a score is of a scorer that nobody asked": (
        ["update scores set scorer = 'x' where n = 1"],
        "has scores of ['x']",
    ),
    "a leaf is scored twice": (
        [
            "insert into scores select n + 1000, tree_id, segment, end, 'again',"
            " scorer_version, state, value, parts, reason,"
            " verifier, duration_ms, stored_ms, repair from scores where n = 1"
        ],
        "has scores of ['again', 'number']",
    ),
    "a score's value is none": (["update scores set value = 9e999 where n = 1"], "is inf"),
    "a score's value was changed": (
        ["update scores set value = value + 0.5 where n = 1"],
        "has a mean reward of",
    ),
    "a score is at no place": (["update scores set segment = x'00' where n = 1"], "is at no place"),
    "a score is in no state": (["update scores set state = 0 where n = 1"], "is in state 0"),
    # leaves
    "a leaf is unlisted": (
        [f"update leaves set listed = 0 where n = {LEAF}"],
        "lists 3 leaves, 4 were grown",
    ),
    "a leaf is unlisted and the count with it": (
        [
            f"update leaves set listed = 0 where n = {LEAF}",
            f"update trees set leaves = 3 where tree_id = {TREE}",
        ],
        "lists other leaves than were grown",
    ),
    "a leaf is gone": ([f"delete from leaves where n = {LEAF}"], "lists 3 leaves"),
    "a leaf ends behind its segment": (
        [f"update leaves set end = 99 where n = {LEAF}"],
        "ends in no segment",
    ),
    # segments
    "a token was changed": (
        [
            "update segments set tokens = cast(x'09000000' || substr(tokens, 5) as blob)"
            f" where tree_id = {TREE} and kind = 2"
        ],
        "does not re-hash",
    ),
    "a log-probability was changed": (
        [
            "update segments set logprobs = cast(x'000080bf' || substr(logprobs, 5) as blob)"
            f" where tree_id = {TREE} and kind = 2"
        ],
        "does not re-hash",
    ),
    "a segment lost its last token": (
        [f"update segments set tokens = substr(tokens, 1, 4) where tree_id = {TREE} and kind = 2"],
        "segment",
    ),
    "a root is gone": (
        [f"delete from segments where tree_id = {TREE} and parent = x''"],
        "has no parent",
    ),
    "a parent is of another tree": (
        [
            "update segments set parent = (select id from segments where kind = 1 order by n"
            " desc limit 1) where n ="
            f" (select max(n) from segments where tree_id = {TREE} and kind = 2)"
        ],
        "has no parent",
    ),
    "a tree lost a segment": (
        [
            "delete from segments where n = (select max(n) from segments where tree_id ="
            f" {TREE} and kind = 2)"
        ],
        "sampled and prompt tokens, and has",
    ),
    "a tree's tokens are counted wrong": (
        [f"update trees set sampled_tokens = sampled_tokens + 1 where tree_id = {TREE}"],
        "sampled and prompt tokens, and",
    ),
    "a segment is of no tree": (
        [f"update segments set tree_id = x'00' where tree_id = {TREE}"],
        "is of no tree",
    ),
    "a sample is of no stored policy": (
        [f"update segments set policy_step = 9 where tree_id = {TREE} and kind = 2"],
        "of no stored policy",
    ),
    "a batch has samples of a later policy": (
        [
            "update segments set policy_step = 2, policy_digest = (select digest from policies"
            " where step = 2)"
            f" where tree_id = {TREE} and kind = 2"
        ],
        "which was made of a later one",
    ),
    # trees and groups
    "a tree is dropped with a reason": (
        [f"update trees set state = {DROPPED}, reason = 'NO_PROGRESS' where tree_id = {TREE}"],
        "was dropped: NO_PROGRESS",
    ),
    "a tree of an evaluation is dropped": (
        [f"update trees set state = {DROPPED}, reason = 'NO_PROGRESS' where n = 1"],
        "was dropped: NO_PROGRESS",
    ),
    "a tree is dropped without a reason": (
        [f"update trees set state = {DROPPED} where tree_id = {TREE}"],
        "was dropped: without a reason",
    ),
    "a tree was never trained on": (
        [
            f"update trees set state = 3 where tree_id = {TREE}",
            f"delete from batch_trees where tree_id = {TREE}",
        ],
        "was never trained on",
    ),
    "a tree is still growing": (
        [f"update trees set state = 1 where tree_id = {TREE}"],
        "is still in state",
    ),
    "a tree closed under a claim that was over": (
        [f"update trees set claim_epoch = 2 where tree_id = {TREE}"],
        "closed under epoch 1 of 2",
    ),
    "a tree's mean reward is wrong": (
        [f"update trees set mean_reward = mean_reward + 0.25 where tree_id = {TREE}"],
        "has a mean reward of",
    ),
    "a tree has no mean reward": (
        [f"update trees set mean_reward = null where tree_id = {TREE}"],
        "mean reward of None",
    ),
    "a tree changed its group": (
        [f"update trees set group_id = 'other', tree_index = 7 where tree_id = {TREE}"],
        "is not what its spec says",
    ),
    "a tree is gone": ([f"delete from trees where tree_id = {TREE}"], "counts (2, 2, 2, 0) trees"),
    "a group counts wrong": (
        ["update groups set done = 1 where purpose = 1 and ordinal = 0"],
        "counts (2, 2, 1, 0) trees",
    ),
    "a group is not consumed": (
        ["update groups set state = 2 where purpose = 1 and ordinal = 0"],
        "is in state 2",
    ),
    "a group's ordinal is left out": (
        ["update groups set ordinal = 99 where purpose = 1 and ordinal = 2"],
        "the ordinals",
    ),
    "a sum of rewards is wrong": (
        ["update tallies set reward_sum = reward_sum + 1 where label = ''"],
        "has reward_sum",
    ),
    "a count of leaves is wrong": (
        ["update tallies set leaves = leaves - 1 where label = ''"],
        "has leaves",
    ),
    "an evaluation has no sums": (
        ["delete from tallies where label = 'after-greedy'"],
        "tally of 'after-greedy'",
    ),
    # counts that are kept
    "a kept count is too high": (
        ["update counts set count = count + 1 where name = 'trees_consumed'"],
        "trees_consumed, ",
    ),
    "a kept count is too low": (
        ["update counts set count = count - 1 where name = 'segments'"],
        "segments, the rows say",
    ),
    "a kept count is gone": (
        ["delete from counts where name = 'leaves'"],
        "counts 0 leaves, the rows say",
    ),
    "scores are counted that are not there": (
        ["delete from scores where n = 1"],
        "scores, the rows say",
    ),
    "policies are counted wrong": (
        ["update counts set count = count + 1 where name = 'policies'"],
        "policies, the rows",
    ),
    "a count is of a run that is not there": (
        ["insert into counts (run_id, name, count) values ('gone', 'leaves', 1)"],
        "run gone counts 1 leaves, the rows",
    ),
    # batches
    "the trees of batches are gone": (["delete from batch_trees"], "batch 0 lacks trees"),
    "a tree of a batch is gone": (
        [f"delete from batch_trees where tree_id = {TREE}"],
        "batch 0 lacks trees",
    ),
    "a tree is consumed twice": (
        [f"insert into batch_trees select max(n) + 1, RUN, {TREE}, 'again', 1 from batch_trees"],
        "is in 2 batches",
    ),
    "a tree of another batch": (
        [f"update batch_trees set ordinal = 1 where tree_id = {TREE}"],
        "has [",
    ),
    "a batch is gone": (["delete from batches where ordinal = 0"], "batches [1], expected 0..1"),
    "the ordinals of batches have a gap": (
        ["update batches set ordinal = 2 where ordinal = 1"],
        "batches [0, 2]",
    ),
    "a batch has no groups": (
        ["update batches set group_ids = '[]' where ordinal = 1"],
        "batch 1 lacks trees [], has [",
    ),
    "a batch has no summary": (
        ["update batches set summary_json = '{}' where ordinal = 0"],
        "batch 0 has no summary",
    ),
    "the summary lacks a group": (
        [
            "update batches set summary_json = json_remove(summary_json, '$.groups[0]') where"
            " ordinal = 0"
        ],
        "lacks groups",
    ),
    "an advantage is absent": (
        [
            "update batches set summary_json = json_remove(summary_json,"
            " '$.groups[0].advantage_max') where ordinal = 0"
        ],
        "advantages [",
    ),
    "a batch is of an older learner": (
        ["update batches set learner_epoch = 2 where ordinal = 0"],
        "by epochs [2, 1]",
    ),
    # policies
    "a policy's digest is wrong": (
        [f"update policies set digest = zeroblob(32) where n = {POLICY}"],
        "not what was told",
    ),
    "a policy is of another batch": (
        [f"update policies set batch_ordinal = 1 where n = {POLICY}"],
        "from batches [1, 1]",
    ),
    "a policy is gone": ([f"delete from policies where n = {POLICY}"], "policies of steps [0, 2]"),
    "the steps go back": (
        [f"update policies set n = 99 where n = {POLICY}"],
        "a step or an epoch goes back",
    ),
    "a policy has other weights in another epoch": (
        [
            "insert into policies select 99, run_id, 2, step, zeroblob(32), batch_ordinal,"
            " published, 0, stored_ms"
            " from policies where step = 2"
        ],
        "has other weights than its successor's",
    ),
    "a policy was abandoned": (
        [f"update policies set abandoned = 1 where n = {POLICY}"],
        "was abandoned",
    ),
    "there were two learners": (["update runs set learner_epoch = 2"], "the run had 2 learners"),
    # the run and its queues
    "the run failed": (["update runs set state = 6"], "the run is in state 6"),
    "the run's step is another": (["update runs set step = 1"], "at step 1"),
    "a parked event is left": (
        [_PARKED],
        "1 rows are left in parked",
    ),
    "an event is left in the outbox": (
        ["insert into outbox values (1, 'train.x.batch', 'id', x'', '')"],
        "1 rows are left in outbox",
    ),
    "a blob is left": (
        ["insert into blobs values (x'01', x'02', x'03', 1)"],
        "1 rows are left in blobs",
    ),
    "a dead letter": (
        [_DEAD],
        "1 rows in dead: EXCEPTION: x",
    ),
    "a refused event": (
        [REFUSED],
        "1 rows in refused: STALE_EPOCH",
    ),
    "a late score": ([_LATE], "in late: SCORED_BEFORE"),
}
