"""What a batch says of its sampling, beside rewards and sizes: variety, length, age, what replay gave. Pure.

docs/metrics.md has the formula of each. A share whose denominator is 0 is left out, so that 0 always means none of some.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from banyan.credit.group import lesson_missing, rewards_of
from banyan.segment import Finish, Kind, Segment
from banyan.view import TreeView
from services.learner.data.credit import Credit

AGES = (
    (0, 0, "0"),
    (1, 1, "1"),
    (2, 3, "2_3"),
    (4, 7, "4_7"),
    (8, 1 << 62, "8_up"),
)  # first, last, name
RIGHT = 1.0  # a reward from here on is a right answer, as the store counts them
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

Age = Callable[[Segment], int]
Metrics = dict[str, float]


def of_batch(credits: Sequence[Credit], age: Age, replayed: Collection[bytes] = ()) -> Metrics:
    """Metrics of a batch. `age`: steps that a segment's policy is behind. `replayed`: trees that replay put in."""
    views = [view for credit in credits for view in credit.group.trees]
    return (
        _variance(credits)
        | _largest(credits)
        | _variety(credits)
        | _lengths(views)
        | _form(views)
        | _ages([view for view in views if view.tree.tree_id not in replayed], age)
        | _replay(credits, replayed)
    )


def _variance(credits: Sequence[Credit]) -> Metrics:
    """Of the groups that could be compared: those whose rewards are all the same, all right, all wrong."""
    compared = [
        (r[np.isfinite(r)], lesson_missing(r)) for r in (rewards_of(c.group) for c in credits)
    ]
    compared = [(scored, why) for scored, why in compared if len(scored) > 1]
    if not compared:
        return {}
    flat = [scored for scored, why in compared if why]
    return {
        "zero_variance_share": len(flat) / len(compared),
        "all_right_share": sum(float(scored.min()) >= RIGHT for scored in flat) / len(compared),
        "all_wrong_share": sum(float(scored.max()) <= 0.0 for scored in flat) / len(compared),
    }


def _largest(credits: Sequence[Credit]) -> Metrics:
    """The largest size of an advantage of the groups that teach: an estimator's scale may be next to 0."""
    said = [c.advantages for c in credits if not c.advantages.skip]
    values = np.concatenate(
        [np.zeros(0), *(value for a in said for value in a.node_G_N or a.leaf_G_L)]
    )
    values = np.abs(values[np.isfinite(values)])
    return {"advantage_max": float(values.max())} if len(values) else {}


def _variety(credits: Sequence[Credit]) -> Metrics:
    """Different answers and different completions in groups of more than one leaf, per leaf."""
    leaves = answers = completions = 0
    for credit in credits:
        places = [(view, leaf) for view in credit.group.trees for leaf in range(len(view.leaves_L))]
        if len(places) > 1:
            tokens = [_tokens(view, leaf) for view, leaf in places]
            leaves += len(places)
            completions += len(set(tokens))
            answers += len(
                {
                    _answer(view, leaf) or said
                    for (view, leaf), said in zip(places, tokens, strict=True)
                }
            )
    if not leaves:
        return {}
    return {"distinct_answers": answers / leaves, "duplicate_share": 1.0 - completions / leaves}


def _tokens(view: TreeView, leaf: int) -> bytes:
    """A completion, as something that is equal for equal ones."""
    nodes = (view.nodes[i] for i in view.path(leaf))
    return b"".join(n.tokens_T.tobytes() for n in nodes if n.segment.kind is not Kind.PROMPT)


def _answer(view: TreeView, leaf: int) -> str:
    """What stands in the last <answer> tag, or else all of the completion; empty where part of it has no text."""
    texts: list[str] = []
    for segment, end in view.tree.pieces(view.leaves_L[leaf].segment, view.leaves_L[leaf].end):
        if segment.kind is Kind.PROMPT or not end:
            continue
        if end < len(segment) or not segment.text:
            return ""  # only whole segments have a text
        texts.append(segment.text)
    text = "".join(texts)
    return " ".join(([text, *_TAG.findall(text)][-1]).split())


def _lengths(views: Sequence[TreeView]) -> Metrics:
    """Policy tokens of completions, and how many completions the length limit ended."""
    length_L = [_length(view, leaf) for view in views for leaf in range(len(view.leaves_L))]
    if not length_L:
        return {}
    ends = [
        (view.tree.segments[leaf.segment], leaf.end) for view in views for leaf in view.leaves_L
    ]
    cut = sum(segment.finish is Finish.LENGTH and end == len(segment) for segment, end in ends)
    return {
        "completion_tokens": float(np.mean(length_L)),
        "completion_tokens_median": float(np.median(length_L)),
        "completion_tokens_p99": float(np.quantile(length_L, 0.99)),
        "length_limited_share": cut / len(length_L),
    }


def _length(view: TreeView, leaf: int) -> int:
    return sum(len(view.nodes[i]) for i in view.path(leaf) if view.nodes[i].trained)


def _form(views: Sequence[TreeView]) -> Metrics:
    """Of the leaves: those without a score. Of the scored ones: those of whose form the scorer says that it is wrong."""
    scored = [
        view.facts.parts.get(view.leaves_L[leaf], {}) for view in views for leaf in view.scored_L
    ]
    wrong = sum(
        parts.get("raised", 0.0) > 0.0 or parts.get("format", 1.0) <= 0.0 for parts in scored
    )
    leaves = sum(len(view.leaves_L) for view in views)
    unscored = {"unscorable_share": 1.0 - len(scored) / leaves} if leaves else {}
    return unscored | ({"malformed_share": wrong / len(scored)} if scored else {})


def _ages(views: Sequence[TreeView], age: Age) -> Metrics:
    """Steps that the sampled segments on leaves' paths are behind, each segment once; of fresh trees, as replay is meant to
    be old."""
    age_S = np.array([age(segment) for view in views for segment in _sampled(view)], np.int64)
    if not len(age_S):
        return {}
    shares = {
        f"staleness_{name}": float(((age_S >= first) & (age_S <= last)).mean())
        for first, last, name in AGES
    }
    return {"staleness_mean": float(age_S.mean()), "staleness_max": float(age_S.max())} | shares


def _sampled(view: TreeView) -> Iterator[Segment]:
    seen: set[bytes] = set()
    for node in view.nodes:
        if node.trained and node.segment.id not in seen:
            seen.add(node.segment.id)
            yield node.segment


def _replay(credits: Sequence[Credit], replayed: Collection[bytes]) -> Metrics:
    """Trained path tokens of trees that replay put into the batch, of all trained path tokens."""
    tokens = [
        (n, view.tree.tree_id in replayed) for credit in credits for view, n in _trained(credit)
    ]
    total = sum(n for n, _ in tokens)
    return {"replay_share": sum(n for n, again in tokens if again) / total} if total else {}


def _trained(credit: Credit) -> list[tuple[TreeView, int]]:
    if credit.advantages.skip:
        return []
    pairs = zip(credit.group.trees, credit.advantages.leaf_G_L, strict=True)
    return [
        (view, sum(_length(view, int(leaf)) for leaf in np.flatnonzero(np.isfinite(leaf_L))))
        for view, leaf_L in pairs
    ]
