"""Bounds of a segment: token ids, lengths, log-probs, sampling and policy. Pure.

Only runs whose model the gateway could read have bounds (ADR 051). Nodes sample by the tree's
spec, so a segment that does not fit comes from a broken or dishonest node. FORCED and TOOL
segments have no policy, so neither sampling nor policy is checked.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import NamedTuple

import numpy as np

from banyan.digest import blake
from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.reasons import Reason
from banyan.segment import Kind, Sampling, Segment
from banyan.v1 import tree_pb2
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from services.treestore.unit_of_work.rows import SegmentHeader

_ROUNDING = 1e-3  # nats above 0 that a log-prob may have: half floats, and sums in any order
BROKEN = (
    Reason.EMPTY_SEGMENT,
    Reason.TOKEN_OUT_OF_VOCABULARY,
    Reason.PATH_TOO_LONG,
    Reason.LOGPROB_ABOVE_0,
    Reason.SAMPLING_NOT_ASKED,
    Reason.PROMPT_NOT_OURS,
    Reason.ANSWER_TOKENS_FALSE,
    Reason.ANSWER_END_FALSE,
)
"""Rules that depend on hashed fields alone: a segment breaks them for good, and so do its children.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a run's segments.

    vocabulary: token ids are below it; 0 if the model is unknown
    longest_path: tokens of a path, with the prompt; 0 for any number
    joined: a node ever joined the run
    tokenizer: digest of the run's tokenizer; empty for none
    policies: published policies; None if they are not checked
    """

    vocabulary: int = 0
    longest_path: int = 0
    joined: bool = False
    tokenizer: bytes = b""
    policies: Collection[PolicyVersion] | None = None


class Truncation(NamedTuple):
    """Temperature and truncation of a distribution, in float32 as segments keep them."""

    temperature: float
    top_p: float
    top_k: int

    @classmethod
    def of(cls, sampling: Sampling | GenerateSpec) -> "Truncation":
        """Return the truncation of sampling parameters."""
        temperature, top_p = np.float32(sampling.temperature), np.float32(sampling.top_p)
        return cls(float(temperature), float(top_p), sampling.top_k)


_GREEDY = Truncation(0.0, 1.0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecBounds:
    """Bounds of a tree's segments, by its spec.

    prompt_tokens: length of the prompt; 0 if the gateway has no tokenizer
    prompt_digest: digest of the prompt's tokens
    seed: seed of the tree
    max_new_tokens: tokens of an answer
    truncation: distribution that tokens are drawn from
    stop: strings that end a path
    own_policy: the tree policy is one of this package
    environment: answers on its paths; None for none
    """

    prompt_tokens: int
    prompt_digest: bytes
    seed: int
    max_new_tokens: int
    truncation: Truncation
    stop: tuple[str, ...]
    own_policy: bool
    environment: EnvironmentSpec | None = None

    @property
    def acts(self) -> bool:
        """True if an environment answers on the tree's paths."""
        return self.environment is not None


def bounds_of(spec: tree_pb2.TreeSpec) -> SpecBounds | None:
    """Return the bounds of a spec; None if it is unusable, so that no node can grow it."""
    try:
        generate = GenerateSpec.from_json(spec.generate_json)
    except InvalidInput:
        return None
    return SpecBounds(
        prompt_tokens=spec.prompt_tokens,
        prompt_digest=spec.prompt_digest,
        seed=spec.seed,
        max_new_tokens=generate.max_new_tokens,
        truncation=Truncation.of(generate),
        stop=generate.stop,
        own_policy=generate.name in _own_policies(),
        environment=generate.environment,
    )


@functools.cache
def _own_policies() -> frozenset[str]:
    """Return the tree policies of this package; those of others may use any temperature."""
    plugins = entry_points(group="banyan.generate")
    return frozenset(plugin.name for plugin in plugins if plugin.value.startswith("methods."))


def broken_rule(
    limits: Limits,
    spec: SpecBounds | None,
    segment: Segment,
    *,
    above: SegmentHeader | None,
    prompt_tokens: int,
    given: int = 0,
) -> str:
    """Return the rule that a segment breaks; empty if it breaks none.

    limits, spec: bounds of its run and its tree
    above: its parent
    prompt_tokens: length of the tree's root
    given: tokens of environments' answers on the path before it
    """
    if not limits.vocabulary:
        return ""
    tokens = segment.tokens_T
    if not len(tokens):
        return Reason.EMPTY_SEGMENT
    if int(tokens.min()) < 0 or int(tokens.max()) >= limits.vocabulary:
        return Reason.TOKEN_OUT_OF_VOCABULARY
    before = above.answer_tokens(segment.fork) if above else 0
    path = len(tokens) + (prompt_tokens + before + given if above else 0)
    if 0 < limits.longest_path < path:
        return Reason.PATH_TOO_LONG
    if _above_0(segment):
        return Reason.LOGPROB_ABOVE_0
    if spec is None:
        return Reason.SPEC_UNUSABLE
    if segment.kind is Kind.PROMPT:
        return _broken_prompt(spec, segment) if limits.joined else ""
    if segment.kind in (Kind.POLICY, Kind.FORCED) and before + len(tokens) > spec.max_new_tokens:
        return Reason.PATH_TOO_LONG
    if segment.kind is not Kind.POLICY:
        return ""
    if limits.policies is not None and segment.policy_version not in limits.policies:
        return Reason.POLICY_UNKNOWN
    return _broken_sampling(limits, spec, segment.sampling, len(tokens))


def _above_0(segment: Segment) -> bool:
    logprobs = (segment.logprobs_T, segment.sampled_logprobs_T)
    return any(len(values) and float(values.max()) > _ROUNDING for values in logprobs)


def _broken_prompt(spec: SpecBounds, segment: Segment) -> str:
    digest = blake(segment.tokens_T.astype("<i4").tobytes())
    same = not spec.prompt_tokens or spec.prompt_digest == digest
    return "" if same else Reason.PROMPT_NOT_OURS


def _broken_sampling(limits: Limits, spec: SpecBounds, sampling: Sampling, length: int) -> str:
    fits = (
        sampling.seed == spec.seed
        and length <= sampling.max_new_tokens
        and sampling.stop[: len(spec.stop)] == spec.stop
        and all(token < limits.vocabulary for token, _ in sampling.bias)
        and (not spec.own_policy or Truncation.of(sampling) in (spec.truncation, _GREEDY))
    )
    return "" if fits else Reason.SAMPLING_NOT_ASKED
