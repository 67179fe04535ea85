"""Reasons that programs act on: of errors, of refused events, and of missing scores."""

from enum import StrEnum


class Reason(StrEnum):
    """Machine-readable half of an error or a refusal; its value is its name everywhere."""

    # Errors of any call
    INTERNAL = "INTERNAL"  # nobody raised it on purpose
    PERMANENT = "PERMANENT"  # trying again cannot help
    TEMPORARY = "TEMPORARY"  # the same call may succeed later
    INVALID_INPUT = "INVALID_INPUT"  # a value is wrong
    NOT_FOUND = "NOT_FOUND"  # the thing named does not exist
    REFUSED = "REFUSED"  # a rule forbids it
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"  # this version does not do that yet
    DEADLINE_MISSED = "DEADLINE_MISSED"  # a wait ran out
    UNAVAILABLE = "UNAVAILABLE"  # the other side is away
    LATER = "LATER"  # an answer for several had no room for this one; ask again
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"  # too large or too many at once
    PERMISSION_DENIED = "PERMISSION_DENIED"  # not allowed to this caller

    # Epochs, runs and learners
    STALE_EPOCH = "STALE_EPOCH"  # a newer holder has taken over
    RUN_EXISTS = "RUN_EXISTS"  # the run id is taken
    RUN_LIVE = "RUN_LIVE"  # the run may go on
    RUN_OVER = "RUN_OVER"  # the run has ended
    OTHER_RUN = "OTHER_RUN"  # the tree is another run's
    WRONG_STATE = "WRONG_STATE"  # the run's state does not allow it
    TAKING_OVER = "TAKING_OVER"  # a learner trains committed batches again
    RANK_LOST = "RANK_LOST"  # a rank of the learner is gone
    NOT_CURED = "NOT_CURED"  # what failed the run still holds
    NOT_LOCAL = "NOT_LOCAL"  # asked for over the wrong port
    GIVEN_UP = "GIVEN_UP"  # a process ended too often

    # Claims and trees
    NOT_GROWING = "NOT_GROWING"  # the tree is not being grown
    NO_PROGRESS = "NO_PROGRESS"  # claims without a new segment
    TREE_CLOSED = "TREE_CLOSED"  # the tree is closed
    TREE_DROPPED = "TREE_DROPPED"  # the tree was dropped
    TREE_OVER = "TREE_OVER"  # the tree ended before the score came
    NO_PLUGIN = "NO_PLUGIN"  # the node lacks a plugin
    NO_ROOM = "NO_ROOM"  # the engine cannot hold it
    ENGINE_ENDED = "ENGINE_ENDED"  # the engine's thread has ended

    # Segments and scores
    ORDINAL_TAKEN = "ORDINAL_TAKEN"  # another segment holds the place
    PARENT_REFUSED = "PARENT_REFUSED"  # its parent was refused
    ACTION_OPEN = "ACTION_OPEN"  # growth ends, and an action has neither an answer nor a leaf
    GROWN_TWICE = "GROWN_TWICE"  # the end of growth was published before
    SCORED_BEFORE = "SCORED_BEFORE"  # a score is final
    EPOCH_UNKNOWN = "EPOCH_UNKNOWN"  # no such claim
    EMPTY_SEGMENT = "EMPTY_SEGMENT"  # no tokens
    TOKEN_OUT_OF_VOCABULARY = "TOKEN_OUT_OF_VOCABULARY"  # a token id that the model lacks
    PATH_TOO_LONG = "PATH_TOO_LONG"  # more tokens than the spec allows
    LOGPROB_ABOVE_0 = "LOGPROB_ABOVE_0"  # no log-prob
    SAMPLING_NOT_ASKED = "SAMPLING_NOT_ASKED"  # sampled otherwise than the spec says
    PROMPT_NOT_OURS = "PROMPT_NOT_OURS"  # not the prompt that was opened
    ANSWER_NOT_THEIRS = "ANSWER_NOT_THEIRS"  # only its environment may answer an action
    ANSWER_MISPLACED = "ANSWER_MISPLACED"  # an answer that stands behind no action
    NO_ENVIRONMENT = "NO_ENVIRONMENT"  # its environment takes no joined nodes
    ENVIRONMENT_DIVERGED = "ENVIRONMENT_DIVERGED"  # a path made again came out otherwise
    ENVIRONMENT_FAULT = "ENVIRONMENT_FAULT"  # the environment itself is wrong, not the action
    INFRASTRUCTURE = "INFRASTRUCTURE"  # the system failed, again and again
    EFFECT_UNKNOWN = "EFFECT_UNKNOWN"  # begun outside, and nobody knows what became of it
    ENDING_FALSE = "ENDING_FALSE"  # no verifier said that this action gets no answer
    RENDERER = "RENDERER"  # no turn can follow an action; the path ends there, and is scored
    ANSWER_TOKENS_FALSE = "ANSWER_TOKENS_FALSE"  # not the tokens that its text is rendered to
    ANSWER_END_FALSE = "ANSWER_END_FALSE"  # it ends its path otherwise than its receipt says
    RECEIPT_FALSE = "RECEIPT_FALSE"  # no verifier gave this answer to this action
    POLICY_UNKNOWN = "POLICY_UNKNOWN"  # a policy that was not published
    SPEC_UNUSABLE = "SPEC_UNUSABLE"  # the spec cannot be read
    DEADLINE = "DEADLINE"  # no score in time
    BLOBS_WAIT = "BLOBS_WAIT"  # too many blobs wait
    NO_PAYLOAD = "NO_PAYLOAD"  # the message is not kept

    # Batches and policies
    ALREADY_USED = "ALREADY_USED"  # trained once for this use
    WRONG_ORDINAL = "WRONG_ORDINAL"  # not the next batch
    NOT_CLOSED = "NOT_CLOSED"  # a tree of it is not closed
    HELD_OUT = "HELD_OUT"  # the row is held out
    NOT_FOR_TRAINING = "NOT_FOR_TRAINING"  # the tree measures
    NOT_REPLAYABLE = "NOT_REPLAYABLE"  # cannot be replayed
    POLICY_TAKEN = "POLICY_TAKEN"  # other weights have this number

    # Joining
    NODE_TAKEN = "NODE_TAKEN"  # the node's name is taken
    NO_BOUNDS = "NO_BOUNDS"  # the run has no bounds for joined nodes
    NO_POLICY = "NO_POLICY"  # nothing was published yet
    OTHER_VERSION = "OTHER_VERSION"  # the node speaks other messages
    OVER = "OVER"  # there is nothing to join
    TOO_MANY = "TOO_MANY"  # all places are taken
    NOT_ITS_CLAIM = "NOT_ITS_CLAIM"  # the tree is another node's
    WRONG_CERTIFICATE = "WRONG_CERTIFICATE"  # not the certificate of the token
    UNAUTHENTICATED = "UNAUTHENTICATED"  # no valid credentials

    # Stores and children
    READ_ONLY = "READ_ONLY"  # the store is read only
    STORE_DAMAGED = "STORE_DAMAGED"  # the database file is damaged
    STORE_FAILED = "STORE_FAILED"  # the database fails
    STORE_FULL = "STORE_FULL"  # no space left
    STORE_LOCKED = "STORE_LOCKED"  # another process holds the store
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"  # the database does not answer
    CHILD_DIED = "CHILD_DIED"  # a scorer's process ended
