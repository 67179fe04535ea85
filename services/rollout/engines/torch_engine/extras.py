"""What rows ask for beyond a token and its log-prob: forced tokens, likeliest ones, the score of a learned head."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from services.chassis.weights.value_head import ValueHead
from services.rollout.engines.torch_engine.sampler import Extras
from services.rollout.engines.torch_engine.samples import Samples
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch


def extras(rows: Sequence[RunningBranch], embeddings_V_H: torch.Tensor) -> Extras | None:
    """What rows want of a draw; None if nothing, which costs nothing."""
    wanted = [row.request.signals for row in rows]
    forced = np.array([-1 if row.forced is None else row.forced for row in rows], np.int32)
    if not any(w.top or w.semantic for w in wanted) and (forced < 0).all():
        return None
    most = np.array([max(w.top, w.semantic) for w in wanted], np.int64).clip(
        max=len(embeddings_V_H)
    )
    return Extras(forced, most, embeddings_V_H if any(w.semantic for w in wanted) else None)


def scored(
    drawn: Samples,
    rows: Sequence[RunningBranch],
    head: ValueHead | None,
    states: torch.Tensor | None,
    state_R: Sequence[int],
) -> Samples:
    """The draw with the head's score of the state that each row's token came from; as it is where nobody asks a head."""
    if head is None or states is None or not any(row.request.signals.head for row in rows):
        return drawn
    with torch.inference_mode():
        return replace(drawn, head_R=head(states[list(state_R)]).cpu().numpy())
