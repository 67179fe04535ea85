"""Transcripts: paths as turns, for scorers that want more than the text behind the last answer.

They are made of what is stored: each answer with its receipt, which only a verifier can make.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from banyan.environments.observation import ToolOutcome


@dataclass(frozen=True, slots=True)
class Observed:
    """End of an action.

    environment: name of the environment that answered
    outcome: end of the step; OK, or what was wrong with the action
    reward: reward of the step
    done: whether the episode was over
    """

    environment: str
    outcome: ToolOutcome
    reward: float = 0.0
    done: bool = False

    @property
    def ok(self) -> bool:
        """True if the action was a call that succeeded."""
        return self.outcome is ToolOutcome.OK


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a path: what the policy said, or what its environment answered.

    kind: "policy" or "tool"
    text: its text; empty where `left_out`
    call: for a tool's part the text of the action that it answers, which the part before it has too
    observation: for a tool's part how the action ended; None for the policy's
    left_out: the texts of long paths are left out of their early parts
    """

    kind: Literal["policy", "tool"]
    text: str
    call: str = ""
    observation: Observed | None = None
    left_out: bool = False


Transcript = Sequence[Part]


def of_turns(turns: Iterable[Mapping[str, Any]], completion: str) -> Transcript:
    """Return the transcript of turns in plain data, as `to_plain` gives them, and the text behind.

    Raises KeyError, TypeError or ValueError for other data.
    """
    parts: list[Part] = []
    for turn in turns:
        call, left_out = str(turn["call"]), bool(turn["left_out"])
        parts.append(Part("policy", call, left_out=left_out))
        seen = Observed(
            environment=str(turn["environment"]),
            outcome=ToolOutcome(turn["outcome"]),
            reward=float(turn["reward"]),
            done=bool(turn["done"]),
        )
        parts.append(Part("tool", str(turn["answer"]), call, seen, left_out))
    return (*parts, Part("policy", completion)) if completion else tuple(parts)


def to_plain(call: str, answer: str, seen: Observed, *, left_out: bool = False) -> dict[str, Any]:
    """Return a turn as plain data."""
    return {"call": call, "answer": answer, "left_out": left_out, **asdict(seen)}
