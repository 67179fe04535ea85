"""The reference of exactness: every path by itself through the plain model, then the ordinary per-sequence loss.

Nothing of paths, packing or the learner's gathering is used: what a token is comes from the tree's own pieces.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from banyan.recipe import Optimise
from banyan.segment import Kind
from banyan.view import TreeView
from services.learner import losses
from services.learner.losses.aggregate import Totals
from services.learner.losses.tokens import Tokens
from services.learner.model.load import prepare
from services.learner.packing.packing import PackedSequence
from services.learner.training.trainer import StepReport, Trainer

Grads = dict[str, torch.Tensor]
KAPPA = 1.3  # of one-token rollouts


@dataclass(frozen=True)
class Sequence:
    """One path: its tokens, and of each what the tree recorded."""

    token_T: torch.Tensor
    trained_T: torch.Tensor
    heat_T: torch.Tensor
    behaviour_T: torch.Tensor
    drawn_T: torch.Tensor
    foreign_T: torch.Tensor
    origin_T: torch.Tensor
    share_T: torch.Tensor
    advantage_T: torch.Tensor


def sequences(
    views: list[TreeView], leaf_G_L: list[np.ndarray], forced: Any = (), node_G_N: Any = None
) -> list[Sequence]:
    """The paths of all leaves that take part."""
    found = []
    for index, (view, leaf_L) in enumerate(zip(views, leaf_G_L, strict=True)):
        held: dict[
            tuple[bytes, int], int
        ] = {}  # trained paths through each token, by segment and place in it
        taking = np.flatnonzero(np.isfinite(leaf_L)).tolist()
        spans = {
            leaf: view.tree.pieces(view.leaves_L[leaf].segment, view.leaves_L[leaf].end)
            for leaf in taking
        }
        for leaf in taking:
            for segment, end in spans[leaf]:
                for place in range(end):
                    held[segment.id, place] = held.get((segment.id, place), 0) + 1
        nodes = {
            (n.segment.id, place): n.index for n in view.nodes for place in range(n.start, n.stop)
        }
        for leaf in taking:
            places = [(segment, place) for segment, end in spans[leaf] for place in range(end)]
            worth = [
                leaf_L[leaf] if node_G_N is None else node_G_N[index][nodes[s.id, p]]
                for s, p in places
            ]
            found.append(_sequence(places, held, worth, forced))
    return found


def _sequence(
    places: list[Any], held: dict[tuple[bytes, int], int], worth: list[float], forced: Any
) -> Sequence:
    def opted(s: Any) -> bool:
        return s.kind is Kind.FORCED and s.origin in forced

    def drawn(s: Any, p: int) -> float:
        values = s.sampled_logprobs_T if len(s.sampled_logprobs_T) else s.logprobs_T
        return float(values[p]) if len(values) else 0.0

    def line(make: Any, dtype: Any = torch.float64) -> torch.Tensor:
        return torch.tensor([make(s, p) for s, p in places], dtype=dtype)

    return Sequence(
        token_T=line(lambda s, p: int(s.tokens_T[p]), torch.long),
        trained_T=line(lambda s, p: s.kind is Kind.POLICY or opted(s), torch.bool),
        heat_T=line(lambda s, p: s.sampling.temperature),
        behaviour_T=line(lambda s, p: float(s.logprobs_T[p]) if len(s.logprobs_T) else 0.0),
        drawn_T=line(drawn),
        foreign_T=line(
            lambda s, p: s.policy != b"now" and not (opted(s) and not len(s.logprobs_T)), torch.bool
        ),
        origin_T=line(lambda s, p: int(s.origin) if opted(s) else 0, torch.long),
        share_T=line(lambda s, p: 1 / held[s.id, p]),
        advantage_T=torch.tensor(worth, dtype=torch.float64),
    )


def gathered(
    model: Any, one: Sequence, reference: Any = None, proximal: Any = None
) -> Tokens | None:
    """A sequence as a loss sees it; None without a trained token."""
    keep = one.trained_T[1:]
    if not keep.any():
        return None

    def logits(of: Any) -> torch.Tensor:
        return (of(one.token_T[None]).logits[0, :-1] / one.heat_T[1:, None]).log_softmax(-1)  # type: ignore[no-any-return]

    def chosen(logp_T_V: torch.Tensor) -> torch.Tensor:
        return logp_T_V[torch.arange(len(keep)), one.token_T[1:]][keep][None]

    full = logits(model)
    now = chosen(full)
    soft = (full / KAPPA).log_softmax(-1).detach()
    facts = {n: getattr(one, f"{n}_T")[1:][keep][None] for n in _FACTS}
    return Tokens(
        logp_P_T=now,
        proximal_P_T=now.detach() if proximal is None else chosen(logits(proximal)).detach(),
        mask_P_T=torch.ones_like(now, dtype=torch.bool),
        entropy_P_T=-(full.exp() * full).sum(-1)[keep][None],
        reference_P_T=None if reference is None else chosen(logits(reference)).detach(),
        soft_P_T=chosen(soft),
        soft_mean_P_T=(soft.exp() * full.clamp_min(-20.0)).sum(-1)[keep][None],
        **{f"{n}_P_T": v for n, v in facts.items()},
    )


_FACTS = ("behaviour", "drawn", "foreign", "origin", "share", "advantage")


def flat_loss(
    model: Any,
    views: list[TreeView],
    leaf_G_L: list[np.ndarray],
    name: str,
    settings: dict[str, Any],
    reference: Any = None,
    node_G_N: Any = None,
) -> tuple[float, Grads]:
    """Loss of the batch and the gradient of every parameter."""
    loss = losses.build(name, settings)
    for one in (model, reference):
        if one is not None:
            one.set_attn_implementation("sdpa")
    return summed(
        model, [gathered(model, s, reference) for s in _of(loss, views, leaf_G_L, node_G_N)], loss
    )


def _of(
    loss: losses.Loss, views: list[TreeView], leaf_G_L: list[np.ndarray], node_G_N: Any
) -> list[Sequence]:
    return sequences(views, leaf_G_L, loss.targets.forced, node_G_N)


def summed(model: Any, seen: Any, loss: losses.Loss) -> tuple[float, Grads]:
    """The sequences' losses added up, and the gradients of the model's parameters."""
    seen = [tokens for tokens in seen if tokens is not None]
    totals = Totals(
        sum(t.logp_P_T.numel() for t in seen),
        len(seen),
        sum(float(t.share_P_T.sum()) for t in seen),
    )
    if loss.needs_survey:
        parts = [loss.survey(t) for t in seen]
        totals = replace(
            totals, weight=sum(a for a, _ in parts) / max(1, sum(b for _, b in parts)) or 1.0
        )
    total = torch.zeros((), dtype=torch.float64)
    for tokens in seen:
        total = total + loss.compute(tokens, totals)[0]
    model.zero_grad(set_to_none=True)
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]
    grads = {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for n, p in model.named_parameters()
    }
    return float(total.detach()), grads


def packed(
    model: Any,
    rows: list[PackedSequence],
    name: str,
    settings: dict[str, Any],
    reference: Any = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, Grads]:
    """The trainer's own step up to the gradients, before clipping."""
    model.set_attn_implementation("sdpa")
    report, trainer = stepped(model, rows, name, settings, reference, dtype)
    found = (
        dict(
            zip(
                trainer.masters.names, (g.clone() for g in trainer.masters.gradients()), strict=True
            )
        )
        if rows
        else {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    )
    model.set_attn_implementation("sdpa")
    return report.loss, found


def stepped(
    model: Any,
    rows: list[PackedSequence],
    name: str,
    settings: dict[str, Any],
    reference: Any = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[StepReport, Trainer]:
    """A step that changes no weight."""
    frozen = None if reference is None else prepare(reference)
    optimise = Optimise(loss=name, loss_settings=settings, clip_norm=1e9)  # type: ignore[arg-type]
    trainer = Trainer(prepare(model), optimise, dtype, frozen=frozen)
    trainer._update = lambda rate: None  # type: ignore[method-assign]
    return trainer.step(rows, 0), trainer
