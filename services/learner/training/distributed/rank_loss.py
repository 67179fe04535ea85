"""The loss of a rank, which ends the whole group: no other rank has its part of the weights."""

from banyan.errors import TemporaryError
from banyan.reasons import Reason


class RankLost(TemporaryError):
    """A rank that no longer takes part; the group ends, and starts again from its checkpoint."""

    reason = Reason.RANK_LOST
