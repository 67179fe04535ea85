"""Proves a change of weights by behaviour: a few fixed tokens, and the log-probs that the new weights give them.

Digests say which file was read, never what an engine computes with; an update that did not take effect shows only here.
It proves as much as old and new weights differ on its tokens by more than `tolerance`, which their maker has to calibrate:
in bfloat16 vLLM is 0.07 nats off float32 on random tokens of SmolLM2-135M on average (transformers in bfloat16: 0.06), so
one small step shows only where the weights are sampled from in float32.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from banyan.errors import InvalidInput, TemporaryError
from banyan.segment import Floats, IntTokens

TOLERANCE = 0.2  # nats, mean: three times the noise of bfloat16


@dataclass(frozen=True, slots=True, eq=False)
class Canary:
    """tokens_T, and the log-probs at temperature 1 of all but the first, as the weights' maker computed them."""

    tokens_T: IntTokens
    logprobs_T: Floats
    tolerance: float = TOLERANCE

    def check(self, found_T: Floats, step: int) -> None:
        """Raises TemporaryError unless an engine's log-probs are those of the weights."""
        gap = float(np.abs(found_T - self.logprobs_T).mean())
        if not gap <= self.tolerance:  # a NaN is no proof
            raise TemporaryError(
                f"policy step {step} is loaded, but the engine's log-probs of its canary differ by {gap:.4f} nats on average"
                f" (at most {self.tolerance}); nothing is sampled until an update is proven",
                reason="UNPROVEN",
            )


def read(manifest_path: Path) -> Canary | None:
    """The canary in a weight manifest: {"canary": {"tokens", "logprobs", "tolerance"}}; None where there is none."""
    said = json.loads(manifest_path.read_text()).get("canary")
    if said is None:
        return None
    try:
        tokens_T, logprobs_T = np.array(said["tokens"], np.int32), np.array(said["logprobs"], np.float32)
        canary = Canary(tokens_T, logprobs_T, float(said.get("tolerance", TOLERANCE)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"the canary in {manifest_path} is unusable: {error!r}") from None
    if tokens_T.ndim != 1 or len(tokens_T) < 2 or logprobs_T.shape != (len(tokens_T) - 1,):
        shapes = f"{tokens_T.shape} tokens and {logprobs_T.shape} log-probs"
        raise InvalidInput(f"the canary in {manifest_path} has {shapes}; it needs n > 1 and n - 1")
    return canary
