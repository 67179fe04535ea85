"""Losses of trees that act, against formulas: each path by itself through the plain model.

Nothing of the learner's losses is used. PPO's clip with a dual clip, KL by k3 (at most 10) and an
entropy bonus are means over the policy's tokens of all trained paths, each path counted;
`decoupled` weighs a token by π proximal / π behaviour (Hilton et al. 2022, arXiv 2110.00641).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from banyan.segment import Finish, Kind, Segment
from banyan.view import TreeView
from tests.learner.flat_reference import packed
from tests.learner.mixed_batches import exact
from tests.learner.packing.test_tool_trees import REGULARISED, batch, sequences


def ppo(now: Any, old: Any, advantage: float) -> Any:
    """Return max(−A r, −A clip(r, .8, 1.2)), and of a negative A at most −3 A."""
    ratio = (now - old).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    return loss.clamp(max=-3 * advantage) if advantage < 0 else loss


def path_of(view: TreeView, leaf: int) -> list[tuple[Segment, int]]:
    """Return the tokens of a path: segment, and place in it."""
    place = view.leaves_L[leaf]
    found: list[tuple[Segment, int]] = []
    segment, end = view.tree.segments[place.segment], place.end
    while True:
        found = [(segment, at) for at in range(end)] + found
        if not segment.parent:
            return found
        segment, end = view.tree.segments[segment.parent], segment.fork


def terms(
    model: Any, reference: Any, view: TreeView, leaf: int, advantage: float, name: str
) -> Any:
    """Return the sum of a path's losses, and the number of its policy tokens."""
    path = path_of(view, leaf)
    tokens = torch.tensor([[int(segment.tokens_T[at]) for segment, at in path]])
    logits, base = (m(tokens).logits[0].double() for m in (model, reference))
    total, own = torch.zeros((), dtype=torch.float64), 0
    for place in range(1, len(path)):
        segment, at = path[place]
        if segment.kind is not Kind.POLICY:
            continue
        heat = segment.sampling.temperature
        line = (logits[place - 1] / heat).log_softmax(-1)
        now, sampled = line[tokens[0, place]], float(segment.logprobs_T[at])
        if name == "decoupled":  # the proximal policy is that of the step, in its first pass
            loss = (now.detach() - sampled).exp() * ppo(now, now.detach(), advantage)
        else:
            loss = ppo(now, now.detach() if segment.policy == b"now" else sampled, advantage)
        behind = (base[place - 1] / heat).log_softmax(-1)[tokens[0, place]].detach() - now
        behind = behind.clamp(-20, 20)
        total = total + loss + 0.1 * (behind.exp() - behind - 1).clamp(-10, 10)
        total = total + 0.01 * (line.exp() * line).sum()
        own += 1
    return total, own


@pytest.mark.parametrize("seed", range(4))
def test_packed_losses_are_those_of_the_formulas(tiny_llama: Callable[..., Any], seed: int) -> None:
    views, advantages = batch(seed)
    model, reference = exact(tiny_llama(seed)), exact(tiny_llama(seed + 100))
    name, budget = ("ppo-clip", "decoupled")[seed % 2], (20, 60, 400)[seed % 3]
    found = [
        terms(model, reference, view, int(leaf), float(leaf_L[leaf]), name)
        for view, leaf_L in zip(views, advantages, strict=True)
        for leaf in np.flatnonzero(np.isfinite(leaf_L))
    ]
    expected = sum(total for total, _ in found) / sum(own for _, own in found)
    model.zero_grad(set_to_none=True)
    expected.backward()
    flat = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    packing = sequences(views, advantages, budget)
    loss, gradients = packed(model, packing, name, REGULARISED, reference)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-9)
    assert max(float((flat[n] - gradients[n]).abs().max()) for n in flat) < 1e-8


def test_some_paths_end_at_an_answer_that_fills_the_model() -> None:
    """What the tests of this folder compare has such paths."""
    ends = [
        view.tree.segments[leaf.segment]
        for seed in range(16)
        for view in batch(seed)[0]
        for leaf in view.leaves_L
    ]
    kinds = {(end.kind, end.finish) for end in ends}
    assert {(Kind.TOOL, Finish.LENGTH), (Kind.TOOL, Finish.STOP)} <= kinds
    assert (Kind.POLICY, Finish.TOOL_CALL) in kinds
