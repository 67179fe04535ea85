"""Results of evaluations by line: of answers, and of votes beside the leaves that vote. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

LEAF, MAJORITY, HEAD = "voted, a leaf", "voted, majority", "voted, by head"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A result on the held-out rows.

    n: answers or, of votes, rows; 0 if nothing could be scored
    accuracy: share that is right; None without any
    interval: Wilson's 95 % interval; None where each of n is a mean itself
    mean: mean reward; None without any
    """

    n: int
    accuracy: float | None
    interval: tuple[float, float] | None
    mean: float | None

    @property
    def share(self) -> str:
        """The accuracy, as people read it."""
        return "-" if self.accuracy is None else f"{100 * self.accuracy:.1f} %"

    @property
    def bounds(self) -> str:
        """The interval, as people read it."""
        if self.interval is None:
            return "-"
        low, high = self.interval
        return f"{100 * low:.1f} – {100 * high:.1f}"

    @property
    def reward(self) -> str:
        """The mean reward, as people read it."""
        return "-" if self.mean is None else f"{self.mean:.3f}"


def lines(message: rs.EvalProgress) -> Iterator[tuple[str, Measurement]]:
    """Yield the results of an evaluation, each with its name: the kind and, of votes, which."""
    kind = message.label.rpartition("-")[2]
    if kind != "voted":
        yield kind, _of_answers(message)
        return
    if not message.HasField("votes"):
        yield LEAF, _of_answers(message)
        return
    yield LEAF, _of_leaves(message.votes)
    yield MAJORITY, _of_votes(message.votes)
    if message.HasField("head_votes"):
        yield HEAD, _of_votes(message.head_votes)


def _of_answers(message: rs.EvalProgress) -> Measurement:
    n = message.scored
    if not n:
        return Measurement(0, None, None, None)
    interval = plain_data.wilson(message.correct, n)
    return Measurement(n, message.correct / n, interval, message.reward_sum / n)


def _of_votes(votes: rs.Votes) -> Measurement:
    interval = plain_data.wilson(votes.correct, votes.rows)
    return Measurement(
        votes.rows, votes.correct / votes.rows, interval, votes.value_sum / votes.rows
    )


def _of_leaves(votes: rs.Votes) -> Measurement:
    n = votes.rows
    return Measurement(n, votes.leaf_correct_sum / n, None, votes.leaf_value_sum / n)
