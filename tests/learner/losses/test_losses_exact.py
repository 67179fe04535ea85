"""On trees every loss and its gradients equal the flattened per-sequence form, unless broken."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from banyan.segment import Kind, Origin, Sampling, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from services.learner import losses
from services.learner.attention import mask
from services.learner.attention.cost_model import AttentionMethod
from services.learner.losses.aggregate import Totals
from services.learner.packing import packing, pairs, unroll
from services.learner.packing.packing import PackedSequence
from tests.learner.flat_reference import Grads, flat_loss, gathered, packed, sequences
from tests.learner.hand_made_tokens import tokens

FEW = settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MANY = settings(FEW, max_examples=25)
WIDE = {"clip_low": 0.9, "clip_high": 0.9}
KINDS = [(Kind.POLICY, Origin.NONE)] * 6 + [
    (Kind.TOOL, Origin.NONE),
    (Kind.FORCED, Origin.BRANCH),
    (Kind.FORCED, Origin.TEACHER),
]
FORCED = {"branch": "policy", "teacher": "shaped"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("ppo-clip", {"mode": "seq-mean-token-mean", "delta": 4.0}),
    ("ppo-clip", {"mode": "seq-mean-token-sum-norm", "length": 9}),
    ("ppo-clip", {"mode": "seq-mean-token-sum-const", "length": 9, "entropy": 0.3}),
    ("ppo-clip", {"count": "nodes"}),
    ("ppo-clip", {"count": "nodes", "mode": "seq-mean-token-sum", "importance": {}}),
    (
        "ppo-clip",
        {"old": "behaviour", "reject": {"by": "k3", "over": "mean", "low": 0.0, "high": 1.0}},
    ),
    (
        "ppo-clip",
        {"old": "proximal", "reject": {"by": "k1", "over": "token", "low": 0.1, "high": 1.0}},
    ),
    ("ppo-clip", {"reject": {"by": "k1", "over": "mean", "low": 0.5, "high": 2.0}}),
    (
        "reinforce",
        {
            "reject": {"by": "k1", "over": "mean", "low": 0.2, "high": 1.5},
            "mode": "seq-mean-token-mean",
        },
    ),
    ("ppo-clip", {"importance": {"level": "token", "normalise": True}, "forced": FORCED}),
    (
        "ppo-clip",
        {
            "importance": {"level": "token", "bound": "mask", "cap": 1.0},
            "mode": "seq-mean-token-mean",
        },
    ),
    (
        "ppo-clip",
        {
            "importance": {"cap": 3.0, "bound": "mask"},
            "reject": {"over": "worst", "low": 1e-3, "high": 9.0},
        },
    ),
    ("reinforce", {"importance": {"normalise": True, "floor": 0.1}, "mode": "seq-mean-token-sum"}),
    ("reinforce", {"reject": {"by": "k2", "over": "sum", "low": 0.0, "high": 5.0}, "entropy": 0.1}),
    ("decoupled", {}),
    ("decoupled", {"mode": "seq-mean-token-mean", "forced": FORCED}),
    ("gspo", {}),
    ("gspo", WIDE),
    ("gspo", {**WIDE, "over": "product", "forced": FORCED}),
    ("gspo", {**WIDE, "importance": {"level": "token"}}),
    ("cispo", {}),
    ("cispo", {"clip_high": 0.2, "mode": "seq-mean-token-mean", "forced": FORCED}),
    ("otr", {}),
    ("otr", {"beta": -0.1, "mode": "seq-mean-token-mean"}),
    ("otr", {"beta": 0.5, "entropy": 0.1, "forced": FORCED}),
    ("echo-clip", {"tail": 3}),
    ("echo-clip", {"mode": "seq-mean-token-mean"}),
    *(("ppo-clip", {"kl": {"coef": 0.3, "estimator": name}}) for name in ("k1", "k2", "k3", "k3+")),
    ("gspo", {**WIDE, "kl": {"coef": 0.3, "by_ratio": True}, "entropy": 0.1}),
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
        said = kind is Kind.POLICY or origin is Origin.BRANCH
        logprobs = -rng.random(size) * 4 if said else np.zeros(0)
        made = Segment(
            tree.tree_id,
            above.id,
            fork,
            ordinal,
            kind,
            rng.integers(0, 6, size),
            logprobs,
            np.zeros(size) if origin is Origin.BRANCH else np.zeros(0),
            origin=origin,
            policy=b"" if not said else b"old" if rng.random() < 0.4 else b"now",
            sampling=Sampling(temperature=0.8),
        )
        tree.add(made)
        grown.append(made)
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
    found: list[unroll.TreePart] = []
    for index, (view, leaf_L) in enumerate(zip(views, leaf_G_L, strict=True)):
        node_N = None if node_G_N is None else node_G_N[index]
        if loss.targets.pairs:
            found += pairs.parts(
                view, leaf_L, node_N, policy=b"now", budget=budget, targets=loss.targets
            )
            continue
        for run in unroll.divide(view, unroll.trained_leaves(leaf_L), budget):
            found.append(unroll.unroll(view, run, leaf_L, node_N, b"now", targets=loss.targets))
    return packing.pack(found, budget)


def apart(flat: Grads, got: Grads) -> float:
    """Return the largest difference of a parameter's gradient, against its largest number."""
    return max(
        float((flat[n] - got[n]).abs().max() / flat[n].abs().max().clamp_min(1e-3)) for n in flat
    )


def both(
    make: Callable[..., Any],
    seed: int,
    name: str,
    given: dict[str, Any],
    budget: int,
    nodes: bool = False,
) -> Any:
    views, leaf_G_L = batch(seed)
    rng = np.random.default_rng(seed)
    node_G_N = [rng.standard_normal(len(v.nodes)) for v in views] if nodes else None
    model, reference = exact(make(seed % 5)), exact(make(seed % 5 + 1)) if "kl" in given else None
    flat = flat_loss(model, views, leaf_G_L, name, given, reference, node_G_N)
    rows = sequences_of(views, leaf_G_L, losses.build(name, given), budget, node_G_N)
    return flat, packed(model, rows, name, given, reference)


every_loss = pytest.mark.parametrize(
    ("name", "given_settings"),
    CASES,
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x)),
)
any_batch = given(
    seed=st.integers(0, 10**6), budget=st.sampled_from([12, 30, 400]), nodes=st.booleans()
)


def check_equal(
    make: Callable[..., Any],
    name: str,
    given_settings: dict[str, Any],
    seed: int,
    budget: int,
    nodes: bool,
) -> None:
    (expected, flat), (got, on_trees) = both(make, seed, name, given_settings, budget, nodes)
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-11)
    assert apart(flat, on_trees) < 1e-9


@every_loss
@FEW
@any_batch
def test_every_loss_on_trees_equals_its_flattened_form(
    tiny_llama: Callable[..., Any],
    name: str,
    given_settings: dict[str, Any],
    seed: int,
    budget: int,
    nodes: bool,
) -> None:
    check_equal(tiny_llama, name, given_settings, seed, budget, nodes)


@pytest.mark.slow
@every_loss
@MANY
@any_batch
def test_every_loss_equals_its_flattened_form_on_many_more_trees(
    tiny_llama: Callable[..., Any],
    name: str,
    given_settings: dict[str, Any],
    seed: int,
    budget: int,
    nodes: bool,
) -> None:
    check_equal(tiny_llama, name, given_settings, seed, budget, nodes)


@FEW
@given(
    seed=st.integers(0, 10**6),
    budget=st.sampled_from([12, 400]),
    kind=st.sampled_from(["best", "all"]),
)
def test_sibling_pairs_on_trees_equal_their_flattened_form(
    tiny_llama: Callable[..., Any], seed: int, budget: int, kind: str
) -> None:
    views, leaf_G_L = batch(seed)
    model, reference = exact(tiny_llama(seed % 5)), exact(tiny_llama(seed % 5 + 1))
    found = []
    for view, leaf_L in zip(views, leaf_G_L, strict=True):
        below = {
            n.index: [leaf_L[i] for i in range(len(leaf_L)) if n.index in view.path(i)]
            for n in view.nodes
        }
        worth = {i: float(np.nanmean(x)) for i, x in below.items() if np.isfinite(x).any()}
        for node in view.nodes:
            able = [i for i in node.children if i in worth and view.nodes[i].trained]
            best = max(worth[i] for i in able) if able else 0.0
            found += [
                (view.nodes[a], view.nodes[b], view)
                for a in able
                for b in able
                if worth[a] > worth[b] and (kind == "all" or worth[a] == best)
            ]

    def gain(node: Any, view: TreeView) -> torch.Tensor:
        line = torch.tensor(view.tree.prefix_tokens(node.segment.id, node.stop).astype(np.int64))

        def logp(of: Any) -> torch.Tensor:
            every = (of(line[None]).logits[0, :-1] / 0.8).log_softmax(-1)[
                torch.arange(len(line) - 1), line[1:]
            ]
            return every[-len(node) :].sum()

        return logp(model) - logp(reference).detach()

    each = [-torch.nn.functional.logsigmoid(0.5 * (gain(a, v) - gain(b, v))) for a, b, v in found]
    model.zero_grad(set_to_none=True)
    given_settings = {"beta": 0.5, "pairs": kind}
    rows = sequences_of(views, leaf_G_L, losses.build("dpo", given_settings), budget)
    assert sum(len(r.mask_P_T) for r in rows) == 2 * len(each)
    if not each:
        return
    whole = torch.stack(each).mean()
    whole.backward()  # type: ignore[no-untyped-call]
    flat = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    got, on_trees = packed(model, rows, "dpo", given_settings, reference)
    # Temperature is a float32 in a segment.
    assert got == pytest.approx(float(whole.detach()), rel=1e-6)
    assert apart(flat, on_trees) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "loss_off", "gradient_off"),
    [(torch.float32, 1e-4, 1e-4), (torch.bfloat16, 0.1, 0.15)],
)
def test_other_precisions_stay_near(
    tiny_llama: Callable[..., Any], dtype: torch.dtype, loss_off: float, gradient_off: float
) -> None:
    """Bounds against float64, flattened, in float32 and in bfloat16 with its rounded weights."""
    views, leaf_G_L = batch(7)
    for name, given_settings in (
        ("reinforce", {}),
        ("ppo-clip", {"kl": {"coef": 0.3, "estimator": "k2"}, "entropy": 0.1}),
    ):
        expected, flat = flat_loss(
            tiny_llama(1), views, leaf_G_L, name, given_settings, tiny_llama(2)
        )
        rows = sequences_of(views, leaf_G_L, losses.build(name, given_settings), 60)
        got, near = packed(
            tiny_llama(1, torch.float32),
            rows,
            name,
            given_settings,
            tiny_llama(2, torch.float32),
            dtype,
        )
        assert got == pytest.approx(expected, rel=loss_off)
        a, b = (torch.cat([g[n].double().flatten() for n in flat]) for g in (flat, near))
        assert float((a - b).norm() / a.norm()) < gradient_off


# -- what must fail --


@pytest.mark.parametrize("name", ["gspo", "echo-clip", "decoupled"])
def test_a_leaking_mask_changes_every_loss(
    tiny_llama: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    leak = lambda enter, leave: torch.ones(len(enter), len(enter), dtype=torch.bool).tril()  # noqa: E731
    monkeypatch.setattr(mask, "visible", leak)
    monkeypatch.setattr(mask, "choose", lambda sequence, matmuls: AttentionMethod.BLOCKS)
    (_, flat), (_, on_trees) = both(tiny_llama, 11, name, WIDE if name == "gspo" else {}, 400)
    assert apart(flat, on_trees) > 1e-2


def test_a_trunk_counted_by_each_leaf_is_not_counted_once(
    tiny_llama: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll, "_shares", lambda view, leaf_L: np.ones(len(view.nodes)))
    (expected, flat), (got, on_trees) = both(
        tiny_llama, 11, "ppo-clip", {"count": "nodes"}, 400, True
    )
    assert abs(got - expected) > 1e-3
    assert apart(flat, on_trees) > 1e-2


def test_sums_of_advantages_are_not_enough_for_means_over_sequences() -> None:
    """A trunk token with r = 1.1 under paths of 1 and 3 tokens, A = 2, −1: A⁺ and A⁻ know no lengths."""
    log = float(np.log(1.1))
    seen = tokens(
        [[log, 0, 0], [log, 0, 0]],
        advantage=[[2.0] * 3, [-1.0] * 3],
        mask=[[1, 0, 0], [1, 1, 1]],
        old=0.0,
    )
    for mode, trunk_weight, same in (
        ("seq-mean-token-sum", 0.5, True),
        ("seq-mean-token-mean", 0.5, False),
    ):
        loss = losses.build("ppo-clip", {"mode": mode}).compute(seen, Totals(4, 2))[0]
        # The two other tokens of the longer path, r = 1, A = −1.
        rest = (1 + 1) * (0.5 if same else 0.5 / 3)
        shortcut = trunk_weight * (-2.0 * 1.1 + 1.0 * 1.1) + rest
        assert (float(loss) == pytest.approx(shortcut)) is same
    assert float(loss) == pytest.approx(-1.1 + (1.1 + 1 + 1) / 6)


def test_the_last_token_of_every_path_has_its_own_log_prob(tiny_llama: Callable[..., Any]) -> None:
    """Leaves of one token, and leaves inside segments, against each path by itself."""
    from services.learner.model.load import forward, prepare

    views, leaf_G_L = batch(5)
    model = exact(tiny_llama(3))
    flat = [t for t in (gathered(model, s) for s in sequences(views, leaf_G_L)) if t is not None]
    rows = sequences_of(views, leaf_G_L, losses.build("reinforce", {}), 400)
    prepare(model)
    with torch.no_grad():
        values = [
            (forward(model, row)[0][torch.from_numpy(row.index_P_T)], row.mask_P_T) for row in rows
        ]
    ends = [float(v[p][m[p]][-1]) for v, m in values for p in range(len(m))]
    assert sorted(ends) == pytest.approx(
        sorted(float(t.logp_P_T[0, -1].detach()) for t in flat), rel=1e-9
    )
