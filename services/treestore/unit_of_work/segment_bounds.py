"""Bounds of a segment: token ids, lengths, log-probs, sampling and policy, held against what our side wrote. Pure.

Only runs whose model the gateway could read have bounds (ADR 051). Nodes sample by the tree's spec: what does not fit was
made by a node that is broken, or lies. FORCED and TOOL segments are of no policy, and have neither sampling nor policy to
check.
"""

import functools
import json
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from banyan.digest import blake
from banyan.policy import PolicyVersion
from banyan.reasons import Reason
from banyan.segment import Kind, Sampling, Segment
from banyan.v1 import tree_pb2
from services.treestore.unit_of_work.rows import ANSWER, SegmentHeader

_ROUNDING = 1e-3  # nats above 0 that a log-prob may have: half floats, and sums in any order
_GREEDY = (0.0, 1.0, 1)
# What a segment breaks by what its id is a digest of, so for good: what continues it is refused, too.
BROKEN = (
    Reason.EMPTY_SEGMENT,
    Reason.TOKEN_OUT_OF_VOCABULARY,
    Reason.PATH_TOO_LONG,
    Reason.LOGPROB_ABOVE_0,
    Reason.SAMPLING_NOT_ASKED,
    Reason.PROMPT_NOT_OURS,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a run. vocabulary: ids are below it, 0 where nothing is known of its model. longest_path: tokens with the prompt, 0
    for any. policies: those that were published, None where they are not looked at."""

    vocabulary: int = 0
    longest_path: int = 0
    joined: bool = False
    tokenizer: bytes = b""
    policies: Collection[PolicyVersion] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Of a tree, by its spec. prompt_tokens: 0 where the gateway has no tokenizer. own: by a tree policy of this package."""

    prompt_tokens: int
    prompt_digest: bytes
    seed: int
    max_new_tokens: int
    drawn: tuple[float, float, int]  # temperature, top_p, top_k, in float32
    stop: tuple[str, ...]
    own: bool


def asked(spec: tree_pb2.TreeSpec) -> Asked | None:
    """What a spec asks for; None for one that says nothing of its sampling, which no node can grow."""
    try:
        said: dict[str, Any] = json.loads(spec.generate_json)
        return Asked(
            spec.prompt_tokens,
            spec.prompt_digest,
            spec.seed,
            int(said["max_new_tokens"]),
            _drawn(
                float(said.get("temperature", 1.0)),
                float(said.get("top_p", 1.0)),
                int(said.get("top_k", 0)),
            ),
            tuple(said.get("stop", ())),
            said.get("name") in _own(),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


@functools.cache
def _own() -> frozenset[str]:
    """Tree policies of this package: how they draw is known. Those of others may draw at any temperature."""
    return frozenset(
        one.name
        for one in entry_points(group="banyan.generate")
        if one.value.startswith("methods.")
    )


def _drawn(temperature: float, top_p: float, top_k: int) -> tuple[float, float, int]:
    return float(np.float32(temperature)), float(np.float32(top_p)), top_k


def wrong(
    limits: Limits,
    spec: Asked | None,
    segment: Segment,
    above: SegmentHeader | None,
    prompt_tokens: int,
) -> str:
    """The rule that a segment breaks; empty if it breaks none. above: its parent, prompt_tokens: of the tree's root."""
    if not limits.vocabulary:
        return ""
    tokens = segment.tokens_T
    if not len(tokens):
        return Reason.EMPTY_SEGMENT
    if int(tokens.min()) < 0 or int(tokens.max()) >= limits.vocabulary:
        return Reason.TOKEN_OUT_OF_VOCABULARY
    sampled = above.prefix_sampled + (segment.fork if above.kind in ANSWER else 0) if above else 0
    if 0 < limits.longest_path < len(tokens) + (prompt_tokens + sampled if above else 0):
        return Reason.PATH_TOO_LONG
    if any(
        len(row) and float(row.max()) > _ROUNDING
        for row in (segment.logprobs_T, segment.sampled_logprobs_T)
    ):
        return Reason.LOGPROB_ABOVE_0
    if spec is None:
        return Reason.SPEC_UNUSABLE
    if segment.kind is Kind.PROMPT:
        return _wrong_prompt(spec, segment) if limits.joined else ""
    if int(segment.kind) in ANSWER and sampled + len(tokens) > spec.max_new_tokens:
        return Reason.PATH_TOO_LONG
    if segment.kind is not Kind.POLICY:
        return ""
    if limits.policies is not None and segment.policy_version not in limits.policies:
        return Reason.POLICY_UNKNOWN
    return _wrong_sampling(limits, spec, segment.sampling, len(tokens))


def _wrong_prompt(spec: Asked, segment: Segment) -> str:
    same = not spec.prompt_tokens or spec.prompt_digest == blake(
        segment.tokens_T.astype("<i4").tobytes()
    )
    return "" if same else Reason.PROMPT_NOT_OURS


def _wrong_sampling(limits: Limits, spec: Asked, sampling: Sampling, length: int) -> str:
    drawn = _drawn(sampling.temperature, sampling.top_p, sampling.top_k)
    fits = (
        sampling.seed == spec.seed
        and length <= sampling.max_new_tokens
        and sampling.stop[: len(spec.stop)] == spec.stop
        and all(token < limits.vocabulary for token, _ in sampling.bias)
        and (not spec.own or drawn in (spec.drawn, _GREEDY))
    )
    return "" if fits else Reason.SAMPLING_NOT_ASKED
