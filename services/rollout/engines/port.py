"""What a node wants of an engine: sample segments that continue exact token prefixes, and say their cost (DESIGN 7).

An engine decides which branches run together; never what a tree looks like. It is driven from one thread: `submit`,
`abort` and `load` change what runs, `step` advances it. Types here are plain Python and numpy; no engine leaks through.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from banyan.policy import PolicyVersion
from banyan.reasons import Reason
from banyan.segment import Finish, Floats, IntTokens, Sampling
from banyan.signals import NO_SIGNALS, NOTHING_SAID, Signals, Wanted

Key = Hashable
NO_ROOM = Reason.NO_ROOM  # reason of an InvalidInput: this engine is too small, another may not be
UNPROVEN = "UNPROVEN"  # reason of a TemporaryError: it is not known what the engine computes with, so it samples nothing


def no_floats() -> Floats:
    """An empty float32 array."""
    return np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One segment to sample.

    draw_key: key of its draws (banyan.draws.branch_key). keep: whether a child is likely, so that its KV is worth its
    room. order: place in logical order; deterministic engines admit by it, others first come, first served.
    forced: tokens that come first whatever the model says; they take no draw, count not in max_new_tokens, and end nothing.
    signals: what to say of each token, forced ones too.
    """

    key: Key
    prefix_P: IntTokens
    draw_key: int
    sampling: Sampling
    keep: bool = False
    order: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    signals: Wanted = NO_SIGNALS


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """A segment that ended. finish: STOP, BOUNDARY (max_new_tokens reached) or ABORTED (perhaps with no token at all).

    logprobs_T: log softmax(logits / T) over the full vocabulary. sampled_logprobs_T: of the distribution drawn from,
    only where it was truncated, and 0 for forced tokens. entropies_T: of the untempered distribution. cached_tokens: of the
    prefix, those that were not prefilled again. Tokens begin with the request's forced ones, all of them or, where it was
    stopped before their end, none.
    """

    key: Key
    tokens_T: IntTokens
    logprobs_T: Floats
    finish: Finish
    policy: PolicyVersion
    sampled_logprobs_T: Floats = field(default_factory=no_floats)
    entropies_T: Floats = field(default_factory=no_floats)
    cached_tokens: int = 0
    signals: Signals = NOTHING_SAID


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the start, and what runs now. steps: those of the model, so that an engine whose count rises computes.
    unproven: updates of which nothing shows that they took effect."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    unproven: int = 0


class Tokenizer(Protocol):
    """Between text and token ids."""

    eos: frozenset[int]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        """Token ids of a conversation, up to where the model's answer begins."""
        ...

    def encode(self, text: str) -> IntTokens:
        """Token ids of a text that goes on an answer: no template, no special tokens."""
        ...

    def decode(self, tokens: IntTokens) -> str:
        """Text of sampled tokens, without special ones."""
        ...


class Engine(Protocol):
    """Samples segments. Not thread-safe: one thread drives it."""

    tokenizer: Tokenizer

    def submit(self, request: Request) -> None:
        """Queues a segment. Raises InvalidInput if it could never run (reason NO_ROOM: not here); else it waits for room."""
        ...

    def abort(self, key: Key) -> Sampled | None:
        """Stops a segment and returns what there is of it; None if it is not here (any more)."""
        ...

    def step(self) -> list[Sampled]:
        """Admits what fits, samples a token for each running branch, and returns the segments that ended."""
        ...

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """Takes new weights (a manifest of services.chassis.weights.file whose digest was checked; None for the model's own).

        Cuts what runs: those branches are returned as ABORTED segments of the old policy. What waits goes on waiting.
        """
        ...

    def hold(self, held: bool) -> None:
        """Whether nothing more is admitted; what runs goes on. A policy that is loaded ends it."""
        ...

    def forget(self) -> None:
        """Drops all kept prefixes, so that what follows does not depend, even in its last bits, on what was before."""
        ...

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:] under the policy in use, by one teacher-forced pass."""
        ...

    def stats(self) -> EngineStats:
        """Counts."""
        ...

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        ...
