"""Requests of branches beyond a token and its log-prob: forced and top tokens, head scores."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from services.chassis.weights.value_head import ValueHead
from services.rollout.engines.torch_engine.sampler import Extras
from services.rollout.engines.torch_engine.samples import Samples
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch


def extras(branches: Sequence[RunningBranch], embeddings_V_H: torch.Tensor) -> Extras | None:
    """Return the extras of a draw; None, which costs nothing, where no branch requests any."""
    wanted = [branch.request.signals for branch in branches]
    forced_R = np.array([-1 if b.forced is None else b.forced for b in branches], np.int32)
    if not any(w.top or w.semantic for w in wanted) and (forced_R < 0).all():
        return None
    top_count_R = np.array([max(w.top, w.semantic) for w in wanted], np.int64)
    return Extras(
        forced_R=forced_R,
        top_count_R=top_count_R.clip(max=len(embeddings_V_H)),
        embeddings_V_H=embeddings_V_H if any(w.semantic for w in wanted) else None,
    )


def with_head_scores(
    samples: Samples,
    branches: Sequence[RunningBranch],
    head: ValueHead | None,
    states: torch.Tensor | None,
    state_R: Sequence[int],
) -> Samples:
    """Add the head's scores to samples; row r was drawn from state state_R[r].

    Return them unchanged where no branch requests a head's score, or there is no head.
    """
    requested = any(branch.request.signals.head for branch in branches)
    if head is None or states is None or not requested:
        return samples
    with torch.inference_mode():
        return replace(samples, head_R=head(states[list(state_R)]).cpu().numpy())
