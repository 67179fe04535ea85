"""Takes policies into vLLM, and proves that it computes with them before anything is sampled (DESIGN 7).

Two proofs. Weights are read back through vLLM's kernels and compared bit for bit (vllm_proof): that shows a step of any
size. The manifest's canary is scored through the whole engine under a fresh cache salt (canary): that shows gross errors of
anything else. What contradicts either takes the node out of service. Where nothing contradicts, but weights could not be
read back (shards, quantised layers, adapters) and the canary cannot tell old from new, the update counts as unproven.
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
    """The policies that one vLLM took. shapes: of the model's own tensors; lora_rank: of adapters that it was started for.

    done, unproven: counts. _before, _found: the last canary, and what vLLM said of it.
    """

    core: Core
    shapes: Mapping[str, tuple[int, ...]]
    lora_rank: int = 0
    done: int = 0
    unproven: int = 0
    _before: Canary | None = None
    _found: Floats | None = None

    def check(self, weights: Path) -> None:
        """Raises InvalidInput if a weight file is not of this model; nothing has changed then."""
        if (adapter := vllm_adapter.read(weights)) is not None:
            vllm_adapter.check(adapter, weights, self.shapes, self.lora_rank)
        elif self.lora_rank:
            raise InvalidInput(
                f"{weights} holds whole weights, and vLLM was started for adapters; leave out"
                " resources.engine_settings.lora_rank"
            )
        else:
            weight_check.check(weights, self.shapes)

    async def take(self, policy: PolicyVersion, weights: Path) -> None:
        """Takes a policy. Raises TemporaryError if vLLM does not compute with it. Nothing may run."""
        adapter = vllm_adapter.read(weights)
        if adapter is not None:
            await vllm_adapter.take(self.core, policy, adapter, weights)
        else:
            await self._update(policy, weights)
        exact = adapter is None and await self._read_back(policy, weights)
        told = await self._canary(policy, weights, exact)
        self.done += 1
        if not (exact or told):
            self.unproven += 1
            log.warning(
                "policy step %d is loaded; that vLLM computes with it is not proven", policy.step
            )

    async def _update(self, policy: PolicyVersion, weights: Path) -> None:
        """Raises TemporaryError where the weights did not come: half of them may be in use."""
        try:
            await self.core.update(weights)
        except InvalidInput as error:
            message = f"policy step {policy.step} did not come whole: {error}; nothing is sampled until a policy has"
            raise TemporaryError(message, reason=UNPROVEN) from None

    async def _read_back(self, policy: PolicyVersion, weights: Path) -> bool:
        """Whether all weights are in use, as far as they can be read."""
        wrong, unknown = await self.core.read_back(weights)
        if wrong:
            raise _unproven(
                policy,
                f"vLLM computes with other values of {len(wrong)} tensors, such as {wrong[0]}",
            )
        return not unknown

    async def _canary(self, policy: PolicyVersion, weights: Path, exact: bool) -> bool:
        """Whether the canary tells these weights from the ones before."""
        bird = canary.read(weights)
        if bird is None:
            return False
        found_T = await self.core.score(
            bird.tokens_T.tolist(), 1, 1.0, f"{policy.digest.hex()}/canary/{self.done}"
        )
        bird.check(found_T, policy.step)
        if not exact and bird.stuck(found_T, self._before, self._found):
            raise _unproven(policy, "vLLM says of its canary, bit for bit, what it said before")
        told = bird.tells(self._before)
        self._before, self._found = bird, found_T
        return told


def _unproven(policy: PolicyVersion, why: str) -> TemporaryError:
    message = f"policy step {policy.step} is loaded, but {why}; nothing is sampled until an update is proven"
    return TemporaryError(message, reason=UNPROVEN)
