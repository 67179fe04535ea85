"""The reference of exactness: each path by itself through the plain model, and its own loss.

Nothing of the learner's paths, packing or gathering is used: tokens come from the tree's segments.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from banyan.recipe import Optimise
from banyan.segment import Kind, Origin, Segment
from banyan.view import TreeView
from services.learner import losses
from services.learner.losses.aggregate import Totals
from services.learner.losses.tokens import Tokens
from services.learner.model.load import prepare
from services.learner.packing.packing import PackedSequence
from services.learner.training.trainer import StepReport, Trainer

Grads = dict[str, torch.Tensor]
KAPPA = 1.3  # of one-token rollouts

Place = tuple[Segment, int]  # a token of a tree: its segment, and its place in it


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """One path: its tokens, and the records of each."""

    token_T: torch.Tensor
    trained_T: torch.Tensor
    temperature_T: torch.Tensor
    behaviour_T: torch.Tensor
    drawn_T: torch.Tensor
    foreign_T: torch.Tensor
    origin_T: torch.Tensor
    share_T: torch.Tensor
    advantage_T: torch.Tensor


def sequences(
    views: list[TreeView],
    leaf_G_L: list[np.ndarray],
    forced: Collection[Origin] = (),
    node_G_N: Any = None,
) -> list[Sequence]:
    """Return the paths of all leaves that take part.

    forced: origins of forced tokens that are trained on.
    """
    paths = []
    for index, (view, leaf_L) in enumerate(zip(views, leaf_G_L, strict=True)):
        trained = np.flatnonzero(np.isfinite(leaf_L)).tolist()
        places = {leaf: _places(view, leaf) for leaf in trained}
        holders = Counter((s.id, p) for leaf in trained for s, p in places[leaf])
        nodes = {(n.segment.id, p): n.index for n in view.nodes for p in range(n.start, n.stop)}
        for leaf in trained:
            if node_G_N is None:
                advantages = [leaf_L[leaf]] * len(places[leaf])
            else:
                advantages = [node_G_N[index][nodes[s.id, p]] for s, p in places[leaf]]
            paths.append(_sequence(places[leaf], holders, advantages, forced))
    return paths


def _places(view: TreeView, leaf: int) -> list[Place]:
    """Return the tokens of a path, by segment and place in it."""
    end_of = view.leaves_L[leaf]
    pieces = view.tree.pieces(end_of.segment, end_of.end)
    return [(segment, place) for segment, end in pieces for place in range(end)]


def _sequence(
    places: list[Place],
    holders: Mapping[tuple[bytes, int], int],
    advantages: list[float],
    forced: Collection[Origin],
) -> Sequence:
    """Return a path. holders: trained paths through each token."""

    def is_target(s: Segment) -> bool:
        return s.kind is Kind.FORCED and s.origin in forced

    def drawn(s: Segment, p: int) -> float:
        values = s.sampled_logprobs_T if len(s.sampled_logprobs_T) else s.logprobs_T
        return float(values[p]) if len(values) else 0.0

    def line(value_of: Any, dtype: Any = torch.float64) -> torch.Tensor:
        return torch.tensor([value_of(s, p) for s, p in places], dtype=dtype)

    def foreign(s: Segment, p: int) -> bool:
        return s.policy != b"now" and not (is_target(s) and not len(s.logprobs_T))

    return Sequence(
        token_T=line(lambda s, p: int(s.tokens_T[p]), torch.long),
        trained_T=line(lambda s, p: s.kind is Kind.POLICY or is_target(s), torch.bool),
        temperature_T=line(lambda s, p: s.sampling.temperature),
        behaviour_T=line(lambda s, p: float(s.logprobs_T[p]) if len(s.logprobs_T) else 0.0),
        drawn_T=line(drawn),
        foreign_T=line(foreign, torch.bool),
        origin_T=line(lambda s, p: int(s.origin) if is_target(s) else 0, torch.long),
        share_T=line(lambda s, p: 1 / holders[s.id, p]),
        advantage_T=torch.tensor(advantages, dtype=torch.float64),
    )


_RECORDED = ("behaviour", "drawn", "foreign", "origin", "share", "advantage")


def gathered(
    model: Any, sequence: Sequence, reference: Any = None, proximal: Any = None
) -> Tokens | None:
    """Return a sequence as a loss sees it; None without a trained token."""
    trained = sequence.trained_T[1:]
    if not trained.any():
        return None

    def logprobs(of: Any) -> torch.Tensor:
        logits = of(sequence.token_T[None]).logits[0, :-1]
        return (logits / sequence.temperature_T[1:, None]).log_softmax(-1)

    def chosen(logp_T_V: torch.Tensor) -> torch.Tensor:
        return logp_T_V[torch.arange(len(trained)), sequence.token_T[1:]][trained][None]

    full = logprobs(model)
    now = chosen(full)
    soft = (full / KAPPA).log_softmax(-1).detach()
    recorded = {n: getattr(sequence, f"{n}_T")[1:][trained][None] for n in _RECORDED}
    return Tokens(
        logp_P_T=now,
        proximal_P_T=now.detach() if proximal is None else chosen(logprobs(proximal)).detach(),
        mask_P_T=torch.ones_like(now, dtype=torch.bool),
        entropy_P_T=-(full.exp() * full).sum(-1)[trained][None],
        reference_P_T=None if reference is None else chosen(logprobs(reference)).detach(),
        soft_P_T=chosen(soft),
        soft_mean_P_T=(soft.exp() * full.clamp_min(-20.0)).sum(-1)[trained][None],
        **{f"{n}_P_T": values for n, values in recorded.items()},
    )


def flat_loss(
    model: Any,
    views: list[TreeView],
    leaf_G_L: list[np.ndarray],
    name: str,
    settings: dict[str, Any],
    reference: Any = None,
    node_G_N: Any = None,
) -> tuple[float, Grads]:
    """Return the loss of the batch and the gradient of every parameter."""
    loss = losses.build(name, settings)
    for loaded in (model, reference):
        if loaded is not None:
            loaded.set_attn_implementation("sdpa")
    paths = sequences(views, leaf_G_L, loss.targets.forced, node_G_N)
    return summed(model, [gathered(model, path, reference) for path in paths], loss)


def summed(model: Any, paths: Iterable[Tokens | None], loss: losses.Loss) -> tuple[float, Grads]:
    """Return the sum of the sequences' losses, and the gradients of the model's parameters."""
    trained = [tokens for tokens in paths if tokens is not None]
    totals = Totals(
        tokens=sum(t.logp_P_T.numel() for t in trained),
        paths=len(trained),
        unique=sum(float(t.share_P_T.sum()) for t in trained),
    )
    if loss.needs_survey:
        surveys = [loss.survey(t) for t in trained]
        weight = sum(total for total, _ in surveys) / max(1, sum(count for _, count in surveys))
        totals = replace(totals, weight=weight or 1.0)
    total = torch.zeros((), dtype=torch.float64)
    for tokens in trained:
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
    sequences: list[PackedSequence],
    name: str,
    settings: dict[str, Any],
    reference: Any = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, Grads]:
    """Return loss and gradients of the trainer's own step, before clipping."""
    model.set_attn_implementation("sdpa")
    report, trainer = stepped(model, sequences, name, settings, reference, dtype)
    if sequences:
        masters = trainer.masters
        gradients = [g.clone() for g in masters.gradients()]
        by_name = dict(zip(masters.names, gradients, strict=True))
    else:
        by_name = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    model.set_attn_implementation("sdpa")
    return report.loss, by_name


def stepped(
    model: Any,
    sequences: list[PackedSequence],
    name: str,
    settings: dict[str, Any],
    reference: Any = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[StepReport, Trainer]:
    """Take a step that changes no weight, and return its report with the trainer."""
    frozen = None if reference is None else prepare(reference)
    optimise = Optimise(loss=name, loss_settings=settings, clip_norm=1e9)  # type: ignore[arg-type]
    trainer = Trainer(prepare(model), optimise, dtype, frozen=frozen)
    trainer._update = lambda rate: None  # type: ignore[method-assign]
    return trainer.step(sequences, 0), trainer
