"""Loading of policies into vLLM, with proof that it computes with them before it samples.

There are two proofs. Weights are read back through vLLM's kernels and compared bit for bit
(`readback`): that shows a step of any size. The manifest's canary is scored through the whole
engine under a fresh cache salt (`canary`): that shows gross errors of any other kind. A
contradiction takes the node out of service. Without one, but where weights could not be read back
(shards, quantised layers, adapters) and the canary cannot tell old from new, the update counts as
unproven. See ADR 018.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from banyan.errors import InvalidInput, TemporaryError
from banyan.policy import PolicyVersion
from banyan.segment import Floats
from services.rollout.engines import canary
from services.rollout.engines.canary import Canary
from services.rollout.engines.port import UNPROVEN
from services.rollout.engines.torch_engine import weight_check
from services.rollout.engines.vllm_engine import adapter as vllm_adapter
from services.rollout.engines.vllm_engine.core import Core

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Updates:
    """The updates of one vLLM.

    core: the running vLLM.
    shapes: shapes of the model's own tensors.
    lora_rank: largest rank of adapters that vLLM was started for, 0 for whole weights.
    done: number of updates.
    unproven: number of updates without proof.
    """

    core: Core
    shapes: Mapping[str, tuple[int, ...]]
    lora_rank: int = 0
    done: int = 0
    unproven: int = 0
    _last_canary: Canary | None = None
    _last_scores_T: Floats | None = None

    def check(self, weights: Path) -> None:
        """Raise InvalidInput if a weight file is not of this model; nothing has changed then."""
        if (adapter := vllm_adapter.read(weights)) is not None:
            vllm_adapter.check(adapter, weights, self.shapes, self.lora_rank)
        elif self.lora_rank:
            raise InvalidInput(
                f"{weights} holds whole weights, and vLLM was started for adapters; leave out"
                " resources.engine_settings.lora_rank"
            )
        else:
            weight_check.check(weights, self.shapes)

    async def load(self, policy: PolicyVersion, weights: Path) -> None:
        """Load a policy. Raise TemporaryError if vLLM does not compute with it. Nothing may run."""
        adapter = vllm_adapter.read(weights)
        if adapter is not None:
            await vllm_adapter.load(self.core, policy, adapter, weights)
        else:
            await self._update(policy, weights)
        exact = adapter is None and await self._read_back(policy, weights)
        distinct = await self._check_canary(policy, weights, exact)
        self.done += 1
        if not (exact or distinct):
            self.unproven += 1
            message = "policy step %d is loaded; that vLLM computes with it is not proven"
            log.warning(message, policy.step)

    async def _update(self, policy: PolicyVersion, weights: Path) -> None:
        """Update the weights. Raise TemporaryError where that fails: half of them may be in use."""
        try:
            await self.core.update(weights)
        except InvalidInput as error:
            raise TemporaryError(
                f"policy step {policy.step} did not come whole: {error}; nothing is sampled until a"
                " policy has",
                reason=UNPROVEN,
            ) from None

    async def _read_back(self, policy: PolicyVersion, weights: Path) -> bool:
        """Return whether all weights could be compared. Raise TemporaryError if any differs."""
        wrong, unknown = await self.core.read_back(weights)
        if wrong:
            why = f"vLLM computes with other values of {len(wrong)} tensors, such as {wrong[0]}"
            raise _unproven(policy, why)
        return not unknown

    async def _check_canary(self, policy: PolicyVersion, weights: Path, exact: bool) -> bool:
        """Return whether the canary tells these weights from the ones before.

        Raise TemporaryError if it contradicts.
        """
        expected = canary.read(weights)
        if expected is None:
            return False
        salt = f"{policy.digest.hex()}/canary/{self.done}"
        scores_T = await self.core.score(expected.tokens_T.tolist(), 1, 1.0, salt)
        expected.check(scores_T, policy.step)
        if not exact and expected.stuck(scores_T, self._last_canary, self._last_scores_T):
            raise _unproven(
                policy, "the canary's log-probs are bit for bit those of the policy before"
            )
        distinct = expected.tells(self._last_canary)
        self._last_canary, self._last_scores_T = expected, scores_T
        return distinct


def _unproven(policy: PolicyVersion, why: str) -> TemporaryError:
    return TemporaryError(
        f"policy step {policy.step} is loaded, but {why}; nothing is sampled until an update is"
        " proven",
        reason=UNPROVEN,
    )
