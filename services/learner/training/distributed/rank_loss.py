"""A rank that is lost ends the whole group: nobody else holds its part of the weights."""

from banyan.errors import TemporaryError
from banyan.reasons import Reason


class RankLost(TemporaryError):
    """A rank does not take part any more. The group ends, and is started again from its checkpoint."""

    reason = Reason.RANK_LOST
