"""On trees every loss and its gradients equal the flattened per-sequence form, unless broken."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from banyan.view import TreeView
from services.learner import losses
from tests.learner.flat_reference import flat_loss, gathered, packed, sequences
from tests.learner.mixed_batches import apart, batch, both, exact, sequences_of

FEW = settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MANY = settings(FEW, max_examples=25)
WIDE = {"clip_low": 0.9, "clip_high": 0.9}
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
    pairs_found = []
    for view, leaf_L in zip(views, leaf_G_L, strict=True):
        below = {
            n.index: [leaf_L[i] for i in range(len(leaf_L)) if n.index in view.path(i)]
            for n in view.nodes
        }
        worth = {i: float(np.nanmean(x)) for i, x in below.items() if np.isfinite(x).any()}
        for node in view.nodes:
            able = [i for i in node.children if i in worth and view.nodes[i].trained]
            best = max(worth[i] for i in able) if able else 0.0
            pairs_found += [
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

    each = [
        -torch.nn.functional.logsigmoid(0.5 * (gain(a, v) - gain(b, v))) for a, b, v in pairs_found
    ]
    model.zero_grad(set_to_none=True)
    given_settings = {"beta": 0.5, "pairs": kind}
    packed_batch = sequences_of(views, leaf_G_L, losses.build("dpo", given_settings), budget)
    assert sum(len(r.mask_P_T) for r in packed_batch) == 2 * len(each)
    if not each:
        return
    whole = torch.stack(each).mean()
    whole.backward()  # type: ignore[no-untyped-call]
    flat = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    got, on_trees = packed(model, packed_batch, "dpo", given_settings, reference)
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
        packed_batch = sequences_of(views, leaf_G_L, losses.build(name, given_settings), 60)
        got, near = packed(
            tiny_llama(1, torch.float32),
            packed_batch,
            name,
            given_settings,
            tiny_llama(2, torch.float32),
            dtype,
        )
        assert got == pytest.approx(expected, rel=loss_off)
        a, b = (torch.cat([g[n].double().flatten() for n in flat]) for g in (flat, near))
        assert float((a - b).norm() / a.norm()) < gradient_off


def test_the_last_token_of_every_path_has_its_own_log_prob(tiny_llama: Callable[..., Any]) -> None:
    """Leaves of one token, and leaves inside segments, against each path by itself."""
    from services.learner.model.load import forward, prepare

    views, leaf_G_L = batch(5)
    model = exact(tiny_llama(3))
    flat = [t for t in (gathered(model, s) for s in sequences(views, leaf_G_L)) if t is not None]
    packed_batch = sequences_of(views, leaf_G_L, losses.build("reinforce", {}), 400)
    prepare(model)
    with torch.no_grad():
        values = [
            (forward(model, sequence)[0][torch.from_numpy(sequence.index_P_T)], sequence.mask_P_T)
            for sequence in packed_batch
        ]
    ends = [float(v[p][m[p]][-1]) for v, m in values for p in range(len(m))]
    assert sorted(ends) == pytest.approx(
        sorted(float(t.logp_P_T[0, -1].detach()) for t in flat), rel=1e-9
    )
