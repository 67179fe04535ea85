"""Segments, leaves and scores of a stored tree."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from banyan.stored.plain import name_of, shortened
from banyan.v1 import tree_pb2

Number = TypeVar("Number", np.int32, np.float32)


@dataclass(frozen=True, slots=True)
class Policy:
    """A version of the weights.

    epoch: incarnation of the learner that made it
    step: optimizer steps since the base model
    digest: of the weights, as hex
    """

    epoch: int
    step: int
    digest: str

    @classmethod
    def of(cls, message: tree_pb2.PolicyRef) -> "Policy | None":
        """Return the policy of a message; None if it names none."""
        if not message.digest:
            return None
        return cls(message.learner_epoch, message.step, message.digest.hex())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Segment:
    """A run of tokens that continues a parent.

    id, parent: hex; the parent of the prompt is None
    fork: number of the parent's tokens that it continues
    ordinal: position among its siblings
    kind: PROMPT, POLICY, TOOL or FORCED
    origin: of FORCED tokens BRANCH, TEACHER or TEMPLATE; else None
    tokens: token ids, int32, shape (T,)
    logprobs: log-probs under the policy that sampled, in nats, float32, shape (T,), or (0,) for
        tokens that no policy sampled
    sampled_logprobs: those of the distribution drawn from, only where it differs; else (0,)
    entropies: of the untempered distribution, in nats, float32, shape (T,) or (0,)
    policy: the weights that sampled it; None for other kinds
    finish: BOUNDARY, STOP, LENGTH, TOOL_CALL, PRUNED or ABORTED
    producer: node that made it
    text: the tokens as text
    cached_tokens: tokens before it that were not prefilled again
    """

    id: str
    parent: str | None
    fork: int
    ordinal: int
    kind: str
    origin: str | None
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    sampled_logprobs: npt.NDArray[np.float32]
    entropies: npt.NDArray[np.float32]
    policy: Policy | None
    finish: str
    producer: str
    text: str
    cached_tokens: int

    @classmethod
    def of(cls, message: tree_pb2.Segment) -> "Segment":
        """Return the segment of a message."""
        origin = name_of(tree_pb2.SegmentOrigin, message.origin) if message.origin else None
        return cls(
            id=message.id.hex(),
            parent=message.parent.hex() or None,
            fork=message.fork,
            ordinal=message.ordinal,
            kind=name_of(tree_pb2.SegmentKind, message.kind),
            origin=origin,
            tokens=_numbers(message.tokens, "<i4", np.int32),
            logprobs=_numbers(message.logprobs, "<f4", np.float32),
            sampled_logprobs=_numbers(message.sampled_logprobs, "<f4", np.float32),
            entropies=_numbers(message.entropies, "<f2", np.float32),
            policy=Policy.of(message.policy),
            finish=name_of(tree_pb2.SegmentFinish, message.finish),
            producer=message.producer,
            text=message.text,
            cached_tokens=message.cached_tokens,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Segment) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        words = f"{self.kind} {self.id[:16]}, {len(self)} tokens, {shortened(self.text)}"
        return f"<Segment {words}>"


@dataclass(frozen=True, slots=True)
class Score:
    """Result of a scorer for one place of a tree.

    segment, end: the place, as of a leaf
    value: None if it could not be scored, then with a reason
    parts: named parts of the value
    """

    segment: str
    end: int
    scorer: str
    version: str
    value: float | None
    reason: str | None
    parts: Mapping[str, float]

    @classmethod
    def of(cls, message: tree_pb2.ScoredLeaf) -> "Score":
        """Return the score of a message."""
        scored = message.score.state == tree_pb2.SCORE_STATE_SCORED
        return cls(
            segment=message.leaf.segment.hex(),
            end=message.leaf.end,
            scorer=message.scorer,
            version=message.scorer_version,
            value=message.score.value if scored else None,
            reason=message.score.reason or None,
            parts=MappingProxyType(dict(message.score.parts)),
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """End of a path: the first `end` tokens of a segment.

    reward: weighted mean of its scorers' values; None while one is missing, or if it is unscorable
    """

    segment: str
    end: int
    reward: float | None
    scores: tuple[Score, ...] = ()


def _numbers(data: bytes, form: str, kind: type[Number]) -> npt.NDArray[Number]:
    """Return little-endian numbers as a read-only array."""
    array = np.frombuffer(data, form).astype(kind)
    array.flags.writeable = False
    return array
