"""Segments: runs of tokens that continue a parent, produced by one producer in one go.

The segment is the unit of storage. Its id is BLAKE2b-256 over encoding v1, or v2 if an environment
answered with it, so a tree is a Merkle tree. Both are frozen: the golden vectors in
docs/segment-encoding.md must never change.
"""

import enum
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.digest import blake, packed
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.signals import EMPTY_SIGNALS, Signals, halves

ENCODING_VERSION = 1
RECEIPT_VERSION = 2  # of segments with a receipt
MOST_BIASED = 1024  # tokens
MOST_BIAS = 100.0  # nats: e^-100 is practically 0
IntTokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class Kind(enum.IntEnum):
    """Origin of the tokens. Numbers are those of banyan.v1.SegmentKind."""

    PROMPT = 1  # the task's prompt; context only
    POLICY = 2  # sampled from the policy; the only kind that is trained on
    TOOL = 3  # output of an environment; loss-masked
    FORCED = 4  # not sampled by the policy; see Origin


class Origin(enum.IntEnum):
    """Source of a FORCED segment; NONE for every other kind."""

    NONE = 0
    BRANCH = 1  # a token that a tree policy chose
    TEACHER = 2  # a repaired or taught prefix
    TEMPLATE = 3  # a hint


class Finish(enum.IntEnum):
    """Reason for the end of a segment."""

    BOUNDARY = 1  # its max_new_tokens; the tree policy decides what follows
    STOP = 2  # the model's end token or a stop string
    LENGTH = 3  # the path's token budget
    TOOL_CALL = 4
    PRUNED = 5  # a tree policy cut it
    ABORTED = 6  # the engine stopped it (new policy, drain)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of the draw of tokens.

    temperature: divisor of the logits; 0 is greedy
    top_p: nucleus mass; 1 for no truncation
    top_k: likeliest tokens kept; 0 for no truncation
    max_new_tokens: tokens of the segment at most
    stop: strings that end the path
    seed: seed of the tree; draws are keyed by it, never by call count
    bias: (token, number added to its logit), by token
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    seed: int = 0
    bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if self.bias:
            _check_bias(self.bias)

    @property
    def truncated(self) -> bool:
        """True if the distribution drawn from differs from softmax(logits / T)."""
        return self.top_p < 1.0 or self.top_k > 0 or bool(self.bias)

    def encode(self) -> bytes:
        """Return the fixed little-endian layout, a part of encoding v1.

        The last field holds parameters that were added later: bias, if any.
        """
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
    """Raise InvalidInput unless the bias has its one form, which ids, as digests, require.

    The form is: ascending tokens, float32 numbers, none of them 0.
    """
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
                f"logit bias {added} of token {token} must be a float32 in "
                f"-{MOST_BIAS}..{MOST_BIAS}, not 0"
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
    """Run of tokens of a tree. Fields from `policy_epoch` on are not part of the identity.

    tree_id: id of the tree
    parent: id of the segment above; empty for the root
    fork: number of the parent's tokens that it continues
    ordinal: number among the continuations of the same fork
    tokens_T: token ids
    logprobs_T: behaviour log-probs, log softmax(logits / T) over the full vocabulary, one per token
        (empty for PROMPT and TOOL)
    sampled_logprobs_T: log-probs of the distribution drawn from, only where it differs (else empty)
    policy: digest of the weights that sampled it
    receipt: of a TOOL segment, its environment's answer with the proof of it; the digest of the
        observation is part of the identity, the proof is not
    cached_tokens: tokens of the prefix that the engine did not prefill again
    entropies_T: nats, of the untempered distribution, in half floats, or empty
    signals: other signals that a plan requested
    """

    tree_id: bytes
    parent: bytes
    fork: int
    ordinal: int
    kind: Kind
    tokens_T: IntTokens
    logprobs_T: Floats = field(default_factory=lambda: _NOTHING)
    sampled_logprobs_T: Floats = field(default_factory=lambda: _NOTHING)
    origin: Origin = Origin.NONE
    policy: bytes = b""
    sampling: Sampling = Sampling()
    finish: Finish = Finish.BOUNDARY
    receipt: Receipt | None = None
    # -- not hashed --
    policy_epoch: int = 0
    policy_step: int = 0
    producer: str = ""
    text: str = ""
    cached_tokens: int = 0
    entropies_T: Floats = field(default_factory=lambda: _NOTHING)
    signals: Signals = EMPTY_SIGNALS

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens_T", _frozen(self.tokens_T, np.int32, "tokens"))
        object.__setattr__(self, "logprobs_T", _frozen(self.logprobs_T, np.float32, "log-probs"))
        sampled = _frozen(self.sampled_logprobs_T, np.float32, "sampled log-probs")
        object.__setattr__(self, "sampled_logprobs_T", sampled)
        entropies = _frozen(self.entropies_T, np.float32, "entropies")
        object.__setattr__(
            self, "entropies_T", halves(entropies, (-1,)) if len(entropies) else entropies
        )
        if self.signals is not EMPTY_SIGNALS:
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
                    f"a segment of {len(self.tokens_T)} tokens has {len(values)} {name}; give one "
                    "per token"
                )
        if self.receipt is not None and (self.kind is not Kind.TOOL or not self._is_given):
            raise InvalidInput(
                "only a TOOL segment, which no policy samples, has a receipt: without policy, "
                "log-probs, sampling and origin"
            )
        if self.kind is Kind.POLICY and len(self.logprobs_T) != len(self.tokens_T):
            raise InvalidInput("a POLICY segment needs a behaviour log-prob for each of its tokens")

    @property
    def _is_given(self) -> bool:
        sampled = self.policy or len(self.logprobs_T) or len(self.sampled_logprobs_T)
        return not sampled and self.sampling == Sampling() and self.origin is Origin.NONE

    def __len__(self) -> int:
        return len(self.tokens_T)

    @property
    def policy_version(self) -> PolicyVersion:
        """Version of the weights that sampled it."""
        return PolicyVersion(self.policy_epoch, self.policy_step, self.policy)

    def encode(self) -> bytes:
        """Return encoding v1, or v2, which has the digest of the observation behind it.

        Its fields are version, tree, parent, fork, ordinal, kind, origin, tokens, log-probs,
        policy, sampling and finish.
        """
        version, tail = ENCODING_VERSION, b""
        if self.receipt is not None:
            version, tail = RECEIPT_VERSION, packed(self.receipt.observation.digest)
        return b"".join(
            (
                struct.pack("<B", version),
                packed(self.tree_id),
                packed(self.parent),
                struct.pack("<IIBB", self.fork, self.ordinal, self.kind, self.origin),
                packed(self.tokens_T.astype("<i4", copy=False).tobytes()),
                packed(self.logprobs_T.astype("<f4", copy=False).tobytes()),
                packed(self.sampled_logprobs_T.astype("<f4", copy=False).tobytes()),
                packed(self.policy),
                packed(self.sampling.encode()),
                struct.pack("<B", self.finish),
                tail,
            )
        )

    @cached_property
    def id(self) -> bytes:
        """BLAKE2b-256 over `encode()`: 32 bytes."""
        return blake(self.encode())
