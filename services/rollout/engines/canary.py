"""A few fixed tokens and the log-probs that new weights give them: what an engine must say once it has taken them.

Digests say which file was read, never what an engine computes with. What the canary proves depends on the arithmetic. In
float32 a step moves it by more than the tolerance. In bfloat16 two implementations differ by 0.07 nats on average for
SmolLM2-135M, and each of them moves by as much at any step, whatever its size (learning rates 1e-6 to 2e-5: 0.05 to 0.10,
uncorrelated between learner and vLLM): there it shows gross errors only, and an engine that says the same bits as before.
The proof of single steps is vllm_proof.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from banyan.errors import InvalidInput, TemporaryError
from banyan.segment import Floats, IntTokens

TOLERANCE = 0.2  # nats, mean: three times the noise of bfloat16
_CLEAR = 3.0  # tolerances by which weights must differ for their canary to tell them apart


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

    def stuck(
        self, found_T: Floats, before: "Canary | None", found_before_T: Floats | None
    ) -> bool:
        """Whether an engine says, bit for bit, what it said before, and the weights' maker does not."""
        if (
            before is None
            or found_before_T is None
            or not np.array_equal(before.tokens_T, self.tokens_T)
        ):
            return False
        return np.array_equal(found_T, found_before_T) and not np.array_equal(
            self.logprobs_T, before.logprobs_T
        )

    def tells(self, before: "Canary | None") -> bool:
        """Whether it tells its weights from those before: what proves these disproves those."""
        if before is None or not np.array_equal(before.tokens_T, self.tokens_T):
            return False
        return float(np.abs(self.logprobs_T - before.logprobs_T).mean()) > _CLEAR * self.tolerance


def read(manifest_path: Path) -> Canary | None:
    """The canary in a weight manifest: {"canary": {"tokens", "logprobs", "tolerance"}}; None where there is none."""
    said = json.loads(manifest_path.read_text()).get("canary")
    if said is None:
        return None
    try:
        tokens_T, logprobs_T = (
            np.array(said["tokens"], np.int32),
            np.array(said["logprobs"], np.float32),
        )
        canary = Canary(tokens_T, logprobs_T, float(said.get("tolerance", TOLERANCE)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"the canary in {manifest_path} is unusable: {error!r}") from None
    if tokens_T.ndim != 1 or len(tokens_T) < 2 or logprobs_T.shape != (len(tokens_T) - 1,):
        shapes = f"{tokens_T.shape} tokens and {logprobs_T.shape} log-probs"
        raise InvalidInput(f"the canary in {manifest_path} has {shapes}; it needs n > 1 and n - 1")
    return canary
