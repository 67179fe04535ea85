"""The segment: a run of tokens that continues a parent, produced by one producer in one go; the unit of storage.

Its id is BLAKE2b-256 over encoding v1 (PROTOCOL 1), so a tree is a Merkle tree. The encoding is frozen: the golden
vectors in docs/segment-encoding.md must never change.
"""

import enum
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.digest import blake, packed
from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.signals import NOTHING_SAID, Signals, halves

ENCODING_VERSION = 1
MOST_BIASED, MOST_BIAS = 1024, 100.0  # tokens, and nats: e^-100 is never
IntTokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class Kind(enum.IntEnum):
    """What made the tokens. Numbers are those of banyan.v1.SegmentKind."""

    PROMPT = 1  # the task's prompt; context only
    POLICY = 2  # sampled from the policy; the only kind that is trained on
    TOOL = 3  # output of an environment; loss-masked
    FORCED = 4  # put there by somebody else than the policy; see Origin


class Origin(enum.IntEnum):
    """Who forced a FORCED segment; NONE for every other kind."""

    NONE = 0
    BRANCH = 1  # a token that a tree policy chose
    TEACHER = 2  # a repaired or taught prefix
    TEMPLATE = 3  # a hint


class Finish(enum.IntEnum):
    """Why the segment ended."""

    BOUNDARY = 1  # its max_new_tokens, and the tree policy decides what follows
    STOP = 2  # the model's end token or a stop string
    LENGTH = 3  # the path's token budget
    TOOL_CALL = 4
    PRUNED = 5  # a tree policy cut it
    ABORTED = 6  # the engine stopped it (new policy, drain)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; top_p 1, top_k 0 mean no truncation."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    seed: int = 0  # of the tree; draws are keyed by it, never by call count
    bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit), by token

    def __post_init__(self) -> None:
        if self.bias:
            _check_bias(self.bias)

    @property
    def truncated(self) -> bool:
        """Whether the distribution drawn from differs from softmax(logits / T)."""
        return self.top_p < 1.0 or self.top_k > 0 or bool(self.bias)

    def encode(self) -> bytes:
        """Fixed little-endian layout, part of encoding v1; the last field holds later parameters: bias, if any."""
        head = struct.pack(
            "<ffiIQ", self.temperature, self.top_p, self.top_k, self.max_new_tokens, self.seed
        )
        stops = struct.pack("<I", len(self.stop)) + b"".join(packed(s.encode()) for s in self.stop)
        return (
            head
            + stops
            + packed(b"".join(struct.pack("<if", token, added) for token, added in self.bias))
        )


def _check_bias(bias: tuple[tuple[int, float], ...]) -> None:
    """One form for one bias, because ids are digests: ascending tokens, float32 numbers, none of them 0."""
    if len(bias) > MOST_BIASED:
        raise InvalidInput(f"logit bias of {len(bias)} tokens; give at most {MOST_BIASED}")
    tokens = [token for token, _ in bias]
    if tokens != sorted(set(tokens)) or not all(0 <= token < 2**31 for token in tokens):
        raise InvalidInput(
            f"logit bias must name tokens of at least 0 in ascending order, each once; got {tokens}"
        )
    for token, added in bias:
        if not 0.0 < abs(added) <= MOST_BIAS or float(np.float32(added)) != added:
            raise InvalidInput(
                f"logit bias {added} of token {token} must be a float32 in -{MOST_BIAS}..{MOST_BIAS}, not 0"
            )


_NOTHING: Floats = np.zeros(0, np.float32)
_NOTHING.flags.writeable = False


def _frozen(values: Any, dtype: Any, what: str) -> Any:
    if len(values) == 0 and dtype is np.float32:
        return _NOTHING
    array = np.array(values, dtype=dtype, copy=True).reshape(-1)
    if dtype is np.float32:
        if np.count_nonzero(np.isfinite(array)) < len(array):
            raise InvalidInput(
                f"{what} holds a NaN or an infinity; a segment must hold finite numbers only"
            )
        array += 0.0  # −0 becomes 0, so that equal numbers have equal bits
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Segment:
    """One run of tokens of a tree. Fields from `producer` on are not part of the identity.

    tokens_T: token ids. logprobs_T: behaviour log-probs, log softmax(logits / T) over the full vocabulary, one per token
    (empty for PROMPT and TOOL). sampled_logprobs_T: of the distribution drawn from, only where it differs (else empty).
    fork: how many of the parent's tokens it continues. entropies_T: nats, of the untempered distribution, in half floats,
    or empty. signals: what else a plan asked for.
    """

    tree_id: bytes
    parent: bytes  # segment id; empty for the root
    fork: int
    ordinal: int
    kind: Kind
    tokens_T: IntTokens
    logprobs_T: Floats = field(default_factory=lambda: _NOTHING)
    sampled_logprobs_T: Floats = field(default_factory=lambda: _NOTHING)
    origin: Origin = Origin.NONE
    policy: bytes = b""  # digest of the weights that sampled it
    sampling: Sampling = Sampling()
    finish: Finish = Finish.BOUNDARY
    # -- not hashed --
    policy_epoch: int = 0
    policy_step: int = 0
    producer: str = ""
    text: str = ""
    cached_tokens: int = 0  # of the prefix, that the engine did not prefill again
    entropies_T: Floats = field(default_factory=lambda: _NOTHING)
    signals: Signals = NOTHING_SAID

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens_T", _frozen(self.tokens_T, np.int32, "tokens"))
        object.__setattr__(self, "logprobs_T", _frozen(self.logprobs_T, np.float32, "log-probs"))
        sampled = _frozen(self.sampled_logprobs_T, np.float32, "sampled log-probs")
        object.__setattr__(self, "sampled_logprobs_T", sampled)
        entropies = _frozen(self.entropies_T, np.float32, "entropies")
        object.__setattr__(
            self, "entropies_T", halves(entropies, (-1,)) if len(entropies) else entropies
        )
        if self.signals is not NOTHING_SAID:
            self.signals.check(len(self.tokens_T))
        self._check()

    def _check(self) -> None:
        if not 0 <= self.fork < 2**32 or not 0 <= self.ordinal < 2**32:
            raise InvalidInput(f"fork {self.fork} and ordinal {self.ordinal} must lie in 0..2^32-1")
        for name, values in (
            ("log-probs", self.logprobs_T),
            ("sampled log-probs", self.sampled_logprobs_T),
        ):
            if len(values) not in (0, len(self.tokens_T)):
                raise InvalidInput(
                    f"a segment of {len(self.tokens_T)} tokens has {len(values)} {name}; give one per token"
                )
        if self.kind is Kind.POLICY and len(self.logprobs_T) != len(self.tokens_T):
            raise InvalidInput("a POLICY segment needs a behaviour log-prob for each of its tokens")

    def __len__(self) -> int:
        return len(self.tokens_T)

    @property
    def policy_version(self) -> PolicyVersion:
        """The version of the weights that sampled it."""
        return PolicyVersion(self.policy_epoch, self.policy_step, self.policy)

    def encode(self) -> bytes:
        """Encoding v1: version, tree, parent, fork, ordinal, kind, origin, tokens, log-probs, policy, sampling, finish."""
        return b"".join(
            (
                struct.pack("<B", ENCODING_VERSION),
                packed(self.tree_id),
                packed(self.parent),
                struct.pack("<IIBB", self.fork, self.ordinal, self.kind, self.origin),
                packed(self.tokens_T.astype("<i4", copy=False).tobytes()),
                packed(self.logprobs_T.astype("<f4", copy=False).tobytes()),
                packed(self.sampled_logprobs_T.astype("<f4", copy=False).tobytes()),
                packed(self.policy),
                packed(self.sampling.encode()),
                struct.pack("<B", self.finish),
            )
        )

    @cached_property
    def id(self) -> bytes:
        """BLAKE2b-256 over `encode()`: 32 bytes."""
        return blake(self.encode())
