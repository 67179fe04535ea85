"""Results on the held-out rows."""

from dataclasses import dataclass

from banyan.progress.run_status import moment
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of one evaluation.

    label: such as before-greedy, step-20-sampled, after-greedy
    step: step whose policy it measures; 0 before training, None for a label of another form
    rows, done: held-out rows, and those that are over
    answers, unscorable: answers with and without a value
    accuracy: share of answers whose value is at least 1; None without an answer
    interval: Wilson 95 % interval of the accuracy; None without an answer
    mean_reward: mean value of the answers; None without an answer
    """

    label: str
    step: int | None
    rows: int
    done: int
    answers: int
    unscorable: int
    accuracy: float | None
    interval: tuple[float, float] | None
    mean_reward: float | None

    @classmethod
    def of(cls, message: rs.EvalProgress, last: int) -> "Evaluation":
        """Return the evaluation of a message; `last` is the run's newest step."""
        plain = plain_data.evaluation(message)
        bounds = plain["wilson_95"]
        return cls(
            label=message.label,
            step=moment(message.label, last),
            rows=message.groups,
            done=message.done,
            answers=message.scored,
            unscorable=message.unscorable,
            accuracy=plain["accuracy"],
            interval=(bounds[0], bounds[1]) if bounds else None,
            mean_reward=plain["mean_reward"],
        )
