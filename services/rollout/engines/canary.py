"""The canary: a few fixed tokens and the log-probs that an engine with new weights must give them.

Digests identify the file that was read, not the weights that an engine computes with. The power of
the canary depends on the arithmetic. In float32 a step moves it by more than the tolerance. In
bfloat16 two implementations differ by 0.07 nats on average for SmolLM2-135M, and each of them moves
by as much at any step, whatever its size (learning rates 1e-6 to 2e-5: 0.05 to 0.10, uncorrelated
between learner and vLLM): there it shows only gross errors, and an engine that repeats the bits of
the version before. Single steps are proven by vllm_engine.readback.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from banyan.errors import InvalidInput, TemporaryError
from banyan.segment import Floats, IntTokens

TOLERANCE = 0.2  # nats, mean: three times the noise of bfloat16
# Tolerances by which the canaries of two versions must differ to tell them apart.
_CLEAR = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Canary:
    """Tokens with expected log-probs.

    tokens_T: the tokens.
    logprobs_T: log-probs at temperature 1 of all but the first, as computed by the learner.
    tolerance: largest mean difference, in nats.
    """

    tokens_T: IntTokens
    logprobs_T: Floats
    tolerance: float = TOLERANCE

    def check(self, engine_T: Floats, step: int) -> None:
        """Raise TemporaryError unless an engine's log-probs are those of the weights."""
        gap = float(np.abs(engine_T - self.logprobs_T).mean())
        if not gap <= self.tolerance:  # nor if it is NaN
            raise TemporaryError(
                f"policy step {step} is loaded, but the engine's log-probs of its canary differ by"
                f" {gap:.4f} nats on average (at most {self.tolerance}); nothing is sampled until"
                " an update is proven",
                reason="UNPROVEN",
            )

    def stuck(self, engine_T: Floats, before: "Canary | None", previous_T: Floats | None) -> bool:
        """Return whether an engine repeats its log-probs bit for bit though they should differ."""
        if before is None or previous_T is None:
            return False
        same_tokens = np.array_equal(before.tokens_T, self.tokens_T)
        same_expected = np.array_equal(self.logprobs_T, before.logprobs_T)
        return same_tokens and not same_expected and np.array_equal(engine_T, previous_T)

    def tells(self, before: "Canary | None") -> bool:
        """Return whether it distinguishes its weights from those before."""
        if before is None or not np.array_equal(before.tokens_T, self.tokens_T):
            return False
        gap = float(np.abs(self.logprobs_T - before.logprobs_T).mean())
        return gap > _CLEAR * self.tolerance


def read(manifest_path: Path) -> Canary | None:
    """Read the canary in a weight manifest; None where it has none.

    It is {"canary": {"tokens", "logprobs", "tolerance"}}.
    """
    entry = json.loads(manifest_path.read_text()).get("canary")
    if entry is None:
        return None
    try:
        tokens_T = np.array(entry["tokens"], np.int32)
        logprobs_T = np.array(entry["logprobs"], np.float32)
        canary = Canary(tokens_T, logprobs_T, float(entry.get("tolerance", TOLERANCE)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"the canary in {manifest_path} is unusable: {error!r}") from None
    if tokens_T.ndim != 1 or len(tokens_T) < 2 or logprobs_T.shape != (len(tokens_T) - 1,):
        shapes = f"{tokens_T.shape} tokens and {logprobs_T.shape} log-probs"
        raise InvalidInput(f"the canary in {manifest_path} has {shapes}; it needs n > 1 and n - 1")
    return canary
