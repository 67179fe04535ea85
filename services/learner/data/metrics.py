"""Metrics of a batch's sampling: variety, length, age and share of replay. Pure.

docs/metrics.md has the formula of each. A share with a denominator of 0 is left out, so that 0
always means none of some.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from banyan.credit.estimate import Credit
from banyan.credit.group import lesson_missing, rewards_of
from banyan.segment import Finish, Kind, Segment
from banyan.tree import Leaf
from banyan.view import TreeView
from services.learner.data import tool_metrics, tree_metrics

AGES = (  # first age, last age, name
    (0, 0, "0"),
    (1, 1, "1"),
    (2, 3, "2_3"),
    (4, 7, "4_7"),
    (8, 1 << 62, "8_up"),
)
RIGHT = 1.0  # least reward of a right answer, as the store counts them
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

Age = Callable[[Segment], int]
Metrics = dict[str, float]


def of_batch(credits: Sequence[Credit], age: Age, replayed: Collection[bytes] = ()) -> Metrics:
    """Return the metrics of a batch.

    age: steps that a segment's policy is behind.
    replayed: ids of the trees that replay added.
    """
    views = [view for credit in credits for view in credit.group.trees]
    fresh = [view for view in views if view.tree.tree_id not in replayed]
    return (
        _reward_variance(credits)
        | _largest_advantage(credits)
        | _variety(credits)
        | _lengths(views)
        | _scoring(views, sum(len(credit.stale) for credit in credits))
        | tool_metrics.of_views(views)
        | tree_metrics.of_views(fresh)
        | _ages(fresh, age)
        | _replay_share(credits, replayed)
    )


def _reward_variance(credits: Sequence[Credit]) -> Metrics:
    """Return the shares of comparable groups with equal rewards, all right and all wrong."""
    rewards = [rewards_of(credit.group) for credit in credits]
    compared = [(r[np.isfinite(r)], lesson_missing(r)) for r in rewards]
    compared = [(scored, missing) for scored, missing in compared if len(scored) > 1]
    if not compared:
        return {}
    flat = [scored for scored, missing in compared if missing]
    return {
        "zero_variance_share": len(flat) / len(compared),
        "all_right_share": sum(float(scored.min()) >= RIGHT for scored in flat) / len(compared),
        "all_wrong_share": sum(float(scored.max()) <= 0.0 for scored in flat) / len(compared),
    }


def _largest_advantage(credits: Sequence[Credit]) -> Metrics:
    """Return the largest absolute advantage: an estimator's divisor may be next to 0."""
    teaching = [credit.advantages for credit in credits if not credit.advantages.skip]
    arrays = [values for a in teaching for values in a.node_G_N or a.leaf_G_L]
    values = np.concatenate([np.zeros(0), *arrays])
    values = np.abs(values[np.isfinite(values)])
    return {"advantage_max": float(values.max())} if len(values) else {}


def _variety(credits: Sequence[Credit]) -> Metrics:
    """Return different answers and different completions per leaf, in groups of several leaves."""
    leaves = answers = completions = 0
    for credit in credits:
        places = [(view, leaf) for view in credit.group.trees for leaf in range(len(view.leaves_L))]
        if len(places) < 2:
            continue
        tokens = [_completion(view, leaf) for view, leaf in places]
        distinct_answers = {
            _answer(view, leaf) or completion
            for (view, leaf), completion in zip(places, tokens, strict=True)
        }
        leaves += len(places)
        completions += len(set(tokens))
        answers += len(distinct_answers)
    if not leaves:
        return {}
    return {"distinct_answers": answers / leaves, "duplicate_share": 1.0 - completions / leaves}


def _completion(view: TreeView, leaf: int) -> bytes:
    """Return the tokens behind the prompt, as a hashable value."""
    nodes = (view.nodes[i] for i in view.path(leaf))
    return b"".join(n.tokens_T.tobytes() for n in nodes if n.segment.kind is not Kind.PROMPT)


def _answer(view: TreeView, leaf: int) -> str:
    """Return the text in the last <answer> tag, else all that stands behind the prompt, or behind
    the last answer of an environment.

    Empty if part of the completion has no text: only whole segments have one.
    """
    texts: list[str] = []
    for segment, end in view.tree.pieces(view.leaves_L[leaf].segment, view.leaves_L[leaf].end):
        if segment.kind is Kind.PROMPT or not end:
            continue
        if segment.kind is Kind.TOOL:
            texts = []
            continue
        if end < len(segment) or not segment.text:
            return ""
        texts.append(segment.text)
    text = "".join(texts)
    return " ".join(([text, *_TAG.findall(text)][-1]).split())


def _lengths(views: Sequence[TreeView]) -> Metrics:
    """Return policy tokens per completion, and the share that the length limit ended."""
    length_L = [_length(view, leaf) for view in views for leaf in range(len(view.leaves_L))]
    if not length_L:
        return {}
    cut = sum(_is_cut(view, leaf) for view in views for leaf in view.leaves_L)
    return {
        "completion_tokens": float(np.mean(length_L)),
        "completion_tokens_median": float(np.median(length_L)),
        "completion_tokens_p99": float(np.quantile(length_L, 0.99)),
        "length_limited_share": cut / len(length_L),
    }


def _is_cut(view: TreeView, leaf: Leaf) -> bool:
    segment = view.tree.segments[leaf.segment]
    ended = segment.finish is Finish.LENGTH and leaf.end == len(segment)
    return ended and not tool_metrics.ends_at_its_action(view, leaf)


def _length(view: TreeView, leaf: int) -> int:
    return sum(len(view.nodes[i]) for i in view.path(leaf) if view.nodes[i].trained)


def _scoring(views: Sequence[TreeView], stale: int) -> Metrics:
    """Return the share of leaves without a score, and of scored ones with a malformed answer.

    stale: leaves that have a score, but none in their view, as they are too old
    """
    scored = [
        view.facts.parts.get(view.leaves_L[leaf], {}) for view in views for leaf in view.scored_L
    ]
    malformed = sum(
        parts.get("raised", 0.0) > 0.0 or parts.get("format", 1.0) <= 0.0 for parts in scored
    )
    leaves = sum(len(view.leaves_L) for view in views)
    without = leaves - len(scored) - stale
    unscorable = {"unscorable_share": without / leaves} if leaves else {}
    return unscorable | ({"malformed_share": malformed / len(scored)} if scored else {})


def _ages(views: Sequence[TreeView], age: Age) -> Metrics:
    """Return how many steps sampled segments are behind, each segment counted once.

    Only of fresh trees, as replay is meant to be old.
    """
    ages = np.array([age(segment) for view in views for segment in _sampled(view)], np.int64)
    if not len(ages):
        return {}
    shares = {
        f"staleness_{name}": float(((ages >= first) & (ages <= last)).mean())
        for first, last, name in AGES
    }
    return {"staleness_mean": float(ages.mean()), "staleness_max": float(ages.max())} | shares


def _sampled(view: TreeView) -> Iterator[Segment]:
    """Yield the sampled segments on the paths of leaves, each once."""
    visited: set[bytes] = set()
    for node in view.nodes:
        if node.trained and node.segment.id not in visited:
            visited.add(node.segment.id)
            yield node.segment


def _replay_share(credits: Sequence[Credit], replayed: Collection[bytes]) -> Metrics:
    """Return the share of trained path tokens that belong to replayed trees."""
    tokens = [
        (count, view.tree.tree_id in replayed)
        for credit in credits
        for view, count in _trained_tokens(credit)
    ]
    total = sum(count for count, _ in tokens)
    old = sum(count for count, is_replayed in tokens if is_replayed)
    return {"replay_share": old / total if total else 0.0}


def _trained_tokens(credit: Credit) -> list[tuple[TreeView, int]]:
    """Return the trees of a group that teaches, with their trained path tokens."""
    if credit.advantages.skip:
        return []
    pairs = zip(credit.group.trees, credit.advantages.leaf_G_L, strict=True)
    return [
        (view, sum(_length(view, int(leaf)) for leaf in np.flatnonzero(np.isfinite(leaf_L))))
        for view, leaf_L in pairs
    ]
