"""The engine port: sample segments that continue exact token prefixes, and report their cost.

An engine decides which branches run together, never the shape of a tree. It is driven from one
thread: `submit`, `abort` and `load` change the set of its segments, `step` advances them. Types
here are plain Python and numpy; no engine leaks through.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from banyan.environments.renderers import RendererSpec
from banyan.policy import PolicyVersion
from banyan.reasons import Reason
from banyan.segment import Finish, Floats, IntTokens, Sampling
from banyan.signals import EMPTY_SIGNALS, NO_SIGNALS, Signals, Wanted
from services.chassis.renderers.port import Renderer

Key = Hashable
# Reason of an InvalidInput: this engine is too small, another may not be.
NO_ROOM = Reason.NO_ROOM
# Reason of a TemporaryError: the weights in use are unproven, so the engine samples nothing.
UNPROVEN = "UNPROVEN"


def no_floats() -> Floats:
    """Return an empty float32 array."""
    return np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A segment to sample.

    key: identity of the segment.
    prefix_P: tokens of the path before it.
    draw_key: key of its draws (banyan.draws.branch_key).
    sampling: settings of the distribution drawn from.
    keep: whether a child is likely, so that its KV is worth its memory.
    forks_inside: whether that holds however it ends, as paths begin at any token of it.
    acts: whether that holds behind a stop string, too, where it ends an action.
    order: place in logical order; deterministic engines admit by it, others first come, first
        served.
    forced: tokens that come first, whatever their probability; they take no draw, do not count in
        max_new_tokens, and end nothing.
    signals: signals to return of each token, forced ones too.
    """

    key: Key
    prefix_P: IntTokens
    draw_key: int
    sampling: Sampling
    keep: bool = False
    forks_inside: bool = False
    acts: bool = False
    order: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    signals: Wanted = NO_SIGNALS


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """A segment that ended.

    key: the request's.
    tokens_T: its tokens. They begin with the request's forced ones: all of them or, where it was
        stopped before their end, none.
    logprobs_T: log softmax(logits / T) over the full vocabulary.
    finish: STOP, BOUNDARY (max_new_tokens reached) or ABORTED (perhaps without a token).
    policy: the policy that it was sampled from.
    sampled_logprobs_T: log-probs under the distribution drawn from, only where it was truncated or
        tokens were forced; 0 for forced tokens.
    entropies_T: entropies of the untempered distribution.
    cached_tokens: tokens of the prefix that were not prefilled again.
    signals: the requested signals.
    """

    key: Key
    tokens_T: IntTokens
    logprobs_T: Floats
    finish: Finish
    policy: PolicyVersion
    sampled_logprobs_T: Floats = field(default_factory=no_floats)
    entropies_T: Floats = field(default_factory=no_floats)
    cached_tokens: int = 0
    signals: Signals = EMPTY_SIGNALS


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of an engine.

    sampled_tokens: sampled since the start.
    prefilled_tokens: prefilled since the start.
    cached_tokens: prefix tokens found in the cache since the start.
    steps: steps of the model since the start; while the count rises, the engine computes.
    running: segments that run now.
    waiting: segments that wait now.
    kv_tokens: tokens of KV in memory now.
    unproven: updates since the start without proof that they took effect.
    """

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    unproven: int = 0


class Tokenizer(Protocol):
    """Conversion between text and token ids."""

    eos: frozenset[int]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        """Return token ids of a conversation, up to where the model's answer begins."""
        ...

    def encode(self, text: str) -> IntTokens:
        """Return token ids of a text that continues an answer: no template, no special tokens."""
        ...

    def renderer(self, spec: RendererSpec) -> Renderer:
        """Return the renderer of a tree whose paths act.

        Raise InvalidInput if the model's turns cannot be written so, or not on this node.
        """
        ...

    def decode(self, tokens: IntTokens) -> str:
        """Return the text of sampled tokens, without special ones."""
        ...


class Engine(Protocol):
    """A sampler of segments. Not thread-safe: one thread drives it."""

    tokenizer: Tokenizer

    def submit(self, request: Request) -> None:
        """Queue a segment, which waits for capacity.

        Raise InvalidInput if it could never run (with reason NO_ROOM: not in this engine).
        """
        ...

    def abort(self, key: Key) -> Sampled | None:
        """Stop a segment and return it as far as it is sampled; None if it is not here any more."""
        ...

    def step(self) -> list[Sampled]:
        """Admit segments that fit, sample a token for each branch, and return ended segments."""
        ...

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """Load new weights, and return running branches as ABORTED segments of the old policy.

        weights: a manifest of services.chassis.weights.file whose digest was checked; None for the
            model's own. Waiting segments go on waiting.
        """
        ...

    def hold(self, on: bool) -> None:
        """Stop or resume admission; running branches go on. Loading a policy resumes it."""
        ...

    def forget(self) -> None:
        """Drop all cached prefixes.

        Later samples then do not depend, even in their last bits, on earlier ones.
        """
        ...

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Return log-probs of tokens[first:] under the current policy, by a teacher-forced pass."""
        ...

    def stats(self) -> EngineStats:
        """Return the counts."""
        ...

    @property
    def busy(self) -> bool:
        """True while any segment runs or waits."""
        ...
