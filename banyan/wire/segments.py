"""Conversion between the domain and its protobuf messages.

Reading checks that a segment's id is the digest of its fields.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from banyan import order, reward
from banyan.errors import InvalidInput
from banyan.facts import Facts
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Kind, Origin, Sampling, Segment
from banyan.signals import EMPTY_SIGNALS, Signals
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire import receipts
from banyan.wire.generate_spec import GenerateSpec
from banyan.wire.weights import weights_of


def sampling_to_wire(sampling: Sampling) -> tree_pb2.SamplingParams:
    """Return the message of a Sampling."""
    return tree_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        stop=sampling.stop,
        seed=sampling.seed,
        bias=[tree_pb2.LogitBias(token=token, added=added) for token, added in sampling.bias],
    )


def sampling_from_wire(message: tree_pb2.SamplingParams) -> Sampling:
    """Return the Sampling of a message."""
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        max_new_tokens=message.max_new_tokens,
        stop=tuple(message.stop),
        seed=message.seed,
        bias=tuple((entry.token, entry.added) for entry in message.bias),
    )


def signals_to_wire(signals: Signals) -> tree_pb2.TokenSignals | None:
    """Return the message of Signals; None if they are empty."""
    if not signals:
        return None
    return tree_pb2.TokenSignals(
        top=signals.top_ids_T_K.shape[1],
        top_ids=signals.top_ids_T_K.astype("<i4").tobytes(),
        top_logprobs=signals.top_logprobs_T_K.astype("<f2").tobytes(),
        semantic=signals.semantic_T.astype("<f2").tobytes(),
        head=signals.head_T.astype("<f2").tobytes(),
    )


def signals_from_wire(message: tree_pb2.TokenSignals) -> Signals:
    """Return the Signals of a message. Raises InvalidInput if a field is unusable."""
    ids = _numbers(message.top_ids, "<i4", "token ids")
    logprobs = _numbers(message.top_logprobs, "<f2", "log-probs")
    top = message.top
    if len(ids) != len(logprobs) or (len(ids) % top if top else len(ids)):
        raise InvalidInput(
            f"{len(ids)} likeliest tokens with {len(logprobs)} log-probs are not {top} a token"
        )
    shape = (len(ids) // top if top else 0, top)
    semantic = _numbers(message.semantic, "<f2", "semantic values")
    head = _numbers(message.head, "<f2", "scores of a head")
    return Signals(ids.reshape(shape), logprobs.reshape(shape), semantic, head)


def policy_to_wire(version: PolicyVersion) -> tree_pb2.PolicyRef:
    """Return the message of a version of the weights."""
    return tree_pb2.PolicyRef(learner_epoch=version.epoch, step=version.step, digest=version.digest)


def policy_from_wire(message: tree_pb2.PolicyRef) -> PolicyVersion:
    """Return the version of the weights that a message names."""
    return PolicyVersion(epoch=message.learner_epoch, step=message.step, digest=message.digest)


def segment_to_wire(segment: Segment) -> tree_pb2.Segment:
    """Return the message of a Segment."""
    return tree_pb2.Segment(
        id=segment.id,
        tree_id=segment.tree_id,
        parent=segment.parent,
        fork=segment.fork,
        ordinal=segment.ordinal,
        kind=tree_pb2.SegmentKind.ValueType(segment.kind),
        origin=tree_pb2.SegmentOrigin.ValueType(segment.origin),
        tokens=segment.tokens_T.astype("<i4").tobytes(),
        logprobs=segment.logprobs_T.astype("<f4").tobytes(),
        sampled_logprobs=segment.sampled_logprobs_T.astype("<f4").tobytes(),
        policy=policy_to_wire(segment.policy_version),
        sampling=sampling_to_wire(segment.sampling),
        finish=tree_pb2.SegmentFinish.ValueType(segment.finish),
        producer=segment.producer,
        text=segment.text,
        cached_tokens=segment.cached_tokens,
        entropies=segment.entropies_T.astype("<f2").tobytes(),
        signals=signals_to_wire(segment.signals),
        receipt=receipts.to_wire(segment.receipt) if segment.receipt else None,
    )


def _numbers(data: bytes, dtype: str, what: str) -> np.ndarray:
    width = np.dtype(dtype).itemsize
    if len(data) % width:
        raise InvalidInput(f"{what} are {len(data)} bytes, not a multiple of {width}")
    return np.frombuffer(data, dtype)


def segment_from_wire(message: tree_pb2.Segment) -> Segment:
    """Return the Segment of a message.

    Raises InvalidInput if a field is unusable or the id is not the digest of the fields.
    """
    try:
        kind, origin, finish = Kind(message.kind), Origin(message.origin), Finish(message.finish)
    except ValueError as error:
        raise InvalidInput(f"segment {message.id.hex()[:12]}: {error}") from None
    segment = Segment(
        tree_id=message.tree_id,
        parent=message.parent,
        fork=message.fork,
        ordinal=message.ordinal,
        kind=kind,
        origin=origin,
        tokens_T=_numbers(message.tokens, "<i4", "tokens"),
        logprobs_T=_numbers(message.logprobs, "<f4", "log-probs"),
        sampled_logprobs_T=_numbers(message.sampled_logprobs, "<f4", "sampled log-probs"),
        policy=message.policy.digest,
        sampling=sampling_from_wire(message.sampling),
        finish=finish,
        receipt=receipts.from_wire(message.receipt) if message.HasField("receipt") else None,
        policy_epoch=message.policy.learner_epoch,
        policy_step=message.policy.step,
        producer=message.producer,
        text=message.text,
        cached_tokens=message.cached_tokens,
        entropies_T=_numbers(message.entropies, "<f2", "entropies"),
        signals=signals_from_wire(message.signals)
        if message.HasField("signals")
        else EMPTY_SIGNALS,
    )
    if segment.id != message.id:
        raise InvalidInput(
            f"segment claims id {message.id.hex()[:12]} but its fields digest to "
            f"{segment.id.hex()[:12]}"
        )
    return segment


def leaf_to_wire(leaf: Leaf) -> tree_pb2.LeafRef:
    """Return the message of a Leaf."""
    return tree_pb2.LeafRef(segment=leaf.segment, end=leaf.end)


def leaf_from_wire(message: tree_pb2.LeafRef) -> Leaf:
    """Return the Leaf of a message."""
    return Leaf(message.segment, message.end)


def tree_from_wire(message: tree_pb2.Tree) -> Tree:
    """Return the Tree of a stored tree's segments, which come parents first."""
    return Tree(message.spec.tree_id, (segment_from_wire(s) for s in message.segments))


def leaves_from_wire(tree: tree_pb2.Tree) -> list[Leaf]:
    """Return the leaves of a stored tree in the order of a depth-first walk (banyan/order.py)."""
    paths = order.paths(tree.segments)
    return sorted(
        map(leaf_from_wire, tree.leaves), key=lambda leaf: order.at(paths, leaf.segment, leaf.end)
    )


def rewards_from_wire(
    scores: Iterable[tree_pb2.ScoredLeaf], scorers: int, weights: reward.Weights = reward.EQUAL
) -> dict[Leaf, float | None]:
    """Return the reward of each place that `scorers` scorers or more have scored
    (banyan/reward.py)."""
    return reward.rewards(_scores(scores), scorers, weights)


def _scores(scores: Iterable[tree_pb2.ScoredLeaf]) -> Iterator[tuple[Leaf, str, float | None]]:
    for scored in scores:
        ok = scored.score.state == tree_pb2.SCORE_STATE_SCORED
        yield leaf_from_wire(scored.leaf), scored.scorer, scored.score.value if ok else None


def own_rewards_from_wire(tree: tree_pb2.Tree) -> dict[Leaf, float | None]:
    """Return the reward of each place inside a path that all scorers of single leaves have scored.

    It is None if any of them found the place unscorable. Scorers of whole groups score only leaves;
    where no other one has a weight above 0, no place inside a path has a reward.
    """
    weights, single = weights_of(tree.spec), set(tree.spec.scorers) - set(tree.spec.group_scorers)
    if single and not any(weights.get(scorer, 1.0) > 0 for scorer in single):
        return {}
    above = {segment.id: (segment.parent, segment.fork) for segment in tree.segments}
    leaves = {leaf_from_wire(leaf) for leaf in tree.leaves}
    scores = [
        (place, scorer, value)
        for place, scorer, value in _scores(tree.scores)
        if place not in leaves and scorer not in tree.spec.group_scorers
    ]
    names = reward.inner({place for place, _, _ in scores}, leaves, above) if scores else {}
    inner_scores = [(names[p], scorer, value) for p, scorer, value in scores if p in names]
    return reward.rewards(inner_scores, len(single), weights)


def facts_from_wire(tree: tree_pb2.Tree) -> Facts:
    """Return the facts of a stored tree other than its leaves' rewards.

    These are own rewards of places inside its paths, and the named parts of scores, which are also
    attributes of the segments that they end, and what its environment allows a path. If two scorers
    use one name for a part, the last scorer by name counts.
    """
    parts: dict[Leaf, dict[str, float]] = {}
    for scored in sorted(tree.scores, key=lambda s: (s.scorer, s.scorer_version)):
        if scored.score.parts:
            parts.setdefault(leaf_from_wire(scored.leaf), {}).update(scored.score.parts)
    lengths = {segment.id: len(segment.tokens) // _TOKEN_BYTES for segment in tree.segments}
    whole = {
        leaf.segment: values
        for leaf, values in parts.items()
        if leaf.end == lengths.get(leaf.segment)
    }
    own = own_rewards_from_wire(tree)
    known = {place: value for place, value in own.items() if value is not None}
    unscorable = frozenset(own.keys() - known.keys())
    environment = GenerateSpec.environment_in(tree.spec.generate_json)
    return Facts(
        rewards=known,
        named=whole,
        parts=parts,
        unscorable=unscorable,
        earned=receipts.earned(tree),
        turns=environment.turns if environment else 0,
        longest_path=environment.longest_path if environment else 0,
    )


_TOKEN_BYTES = 4
