"""Random batches of mixed trees, packed for a loss and compared with their flattened form."""

from collections.abc import Callable
from typing import Any

import numpy as np

from banyan.segment import Kind, Origin, Sampling, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from services.learner import losses
from services.learner.packing import packing, pairs, unroll
from services.learner.packing.packing import PackedSequence
from tests.learner.flat_reference import Grads, flat_loss, packed

KINDS = [(Kind.POLICY, Origin.NONE)] * 6 + [
    (Kind.TOOL, Origin.NONE),
    (Kind.FORCED, Origin.BRANCH),
    (Kind.FORCED, Origin.TEACHER),
]


def exact(model: Any) -> Any:
    """Return the model with norms in its own precision, so that other orders of sums agree."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, m=module: (
                m.weight * x * (x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon).rsqrt()
            )
    return model


def mixed(rng: np.random.Generator, segments: int, begin: Any = ()) -> TreeView:
    """Return a random tree with tools, forced tokens with and without log-probs, and two policies.

    Leaves lie inside segments too, and some are masked (unscorable or stale).
    """
    tree = Tree(rng.bytes(32))
    grown = [Segment(tree.tree_id, b"", 0, 0, Kind.PROMPT, [*begin, *rng.integers(0, 6, 3)])]
    tree.add(grown[0])
    for _ in range(segments):
        above, size = grown[rng.integers(len(grown))], int(rng.integers(1, 6))
        fork = int(rng.integers(1, len(above) + 1))
        ordinal = sum(c.fork == fork for c in tree.children.get(above.id, ()))
        kind, origin = KINDS[int(rng.integers(len(KINDS)))]
        has_logprobs = kind is Kind.POLICY or origin is Origin.BRANCH
        logprobs = -rng.random(size) * 4 if has_logprobs else np.zeros(0)
        segment = Segment(
            tree.tree_id,
            above.id,
            fork,
            ordinal,
            kind,
            rng.integers(0, 6, size),
            logprobs,
            np.zeros(size) if origin is Origin.BRANCH else np.zeros(0),
            origin=origin,
            policy=b"" if not has_logprobs else b"old" if rng.random() < 0.4 else b"now",
            sampling=Sampling(temperature=0.8),
        )
        tree.add(segment)
        grown.append(segment)
    ends = [s for s in grown[1:] if s.id not in tree.children or rng.random() < 0.2]
    leaves = [
        Leaf(s.id, len(s) if s.id in tree.children else int(rng.integers(1, len(s) + 1)))
        for s in ends
    ]
    return TreeView(tree, leaves, {leaf: None if rng.random() < 0.2 else 1.0 for leaf in leaves})


Batch = tuple[list[TreeView], list[np.ndarray]]


def batch(seed: int, trees: int = 3, segments: int = 9) -> Batch:
    rng = np.random.default_rng(seed)
    begin = [3, 1, 4] if rng.random() < 0.5 else ()
    views = [mixed(rng, segments, begin) for _ in range(trees)]
    return views, [
        np.where(np.isfinite(v.rewards_L), rng.standard_normal(len(v.rewards_L)), np.nan)
        for v in views
    ]


def sequences_of(
    views: list[TreeView],
    leaf_G_L: list[np.ndarray],
    loss: losses.Loss,
    budget: int,
    node_G_N: Any = None,
) -> list[PackedSequence]:
    parts: list[unroll.TreePart] = []
    for index, (view, leaf_L) in enumerate(zip(views, leaf_G_L, strict=True)):
        node_N = None if node_G_N is None else node_G_N[index]
        if loss.targets.pairs:
            parts += pairs.parts(
                view, leaf_L, node_N, policy=b"now", budget=budget, targets=loss.targets
            )
            continue
        for run in unroll.divide(view, unroll.trained_leaves(leaf_L), budget):
            parts.append(unroll.unroll(view, run, leaf_L, node_N, b"now", targets=loss.targets))
    return packing.pack(parts, budget)


def apart(flat: Grads, got: Grads) -> float:
    """Return the largest difference of a parameter's gradient, against its largest number."""
    return max(
        float((flat[n] - got[n]).abs().max() / flat[n].abs().max().clamp_min(1e-3)) for n in flat
    )


def both(
    make: Callable[..., Any],
    seed: int,
    name: str,
    loss_settings: dict[str, Any],
    budget: int,
    nodes: bool = False,
) -> Any:
    views, leaf_G_L = batch(seed)
    rng = np.random.default_rng(seed)
    node_G_N = [rng.standard_normal(len(v.nodes)) for v in views] if nodes else None
    model, reference = (
        exact(make(seed % 5)),
        exact(make(seed % 5 + 1)) if "kl" in loss_settings else None,
    )
    flat = flat_loss(model, views, leaf_G_L, name, loss_settings, reference, node_G_N)
    packed_batch = sequences_of(
        views, leaf_G_L, losses.build(name, loss_settings), budget, node_G_N
    )
    return flat, packed(model, packed_batch, name, loss_settings, reference)
