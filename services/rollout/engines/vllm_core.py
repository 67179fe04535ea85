"""vLLM's AsyncLLM, started as a node needs it, and the few things that the engine asks of it.

Its scheduler and its workers are processes of their own; they die with the node (vllm_weights).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from banyan.errors import InvalidInput, NotReady
from banyan.segment import Floats
from banyan.signals import Signals
from services.rollout.engines import vllm_params, vllm_weights

BLOCK = 32  # tokens; vLLM shares whole blocks only, and 128, its choice on a CPU, would never share a short prompt
_CLOSE_S = 2.0  # an idle scheduler process takes no notice of a request to end, and is killed then
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # the model is a folder
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound to cores it would share them badly with the learner
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """How vLLM is started. kv_bytes: of kv_tokens tokens; longest: tokens of a path."""

    folder: Path
    dtype: str
    kv_bytes: int
    max_branches: int
    longest: int
    threads: int | None = None
    block: int = BLOCK
    eager: bool = True
    more: Mapping[str, Any] | None = None


class Core:
    """A running vLLM. Coroutines run in the one loop that started it."""

    def __init__(self, llm: Any) -> None:
        self._llm, self._count = llm, 0

    @classmethod
    async def start(cls, settings: CoreSettings) -> "Core":
        """Starts the processes and loads the model. Raises NotReady where vLLM is not installed."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if settings.threads:
            os.environ["OMP_NUM_THREADS"] = str(settings.threads)
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            remedy = "`make vllm` makes .venv-vllm with it, and `.venv-vllm/bin/banyan` uses it"
            raise NotReady(f"resources.engine vllm: vLLM is not installed here ({error}); {remedy}") from None
        try:
            return cls(AsyncLLM.from_engine_args(AsyncEngineArgs(**_arguments(settings))))
        except ValueError as error:
            raise InvalidInput(f"vLLM refuses {settings.folder}: {str(error).splitlines()[0]}") from None

    def new_id(self) -> str:
        """A name for a request."""
        self._count += 1
        return str(self._count)

    async def ask(self, tokens: list[int], salt: str, params: Mapping[str, Any], name: str = "") -> Any:
        """Runs one request to its end; its last output. An abort ends it, with what there is."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        kind = RequestOutputKind.FINAL_ONLY
        sampling = SamplingParams(**params, output_kind=kind, flat_logprobs=True, ignore_eos=True, skip_clone=True)
        last = None
        async for output in self._llm.generate(tokens_input(tokens, cache_salt=salt), sampling, name or self.new_id()):
            last = output
        return last

    async def abort(self, names: list[str]) -> None:
        """Ends requests."""
        await self._llm.abort(names)

    async def read(self, tokens: list[int], first: int, top: int, salt: str) -> tuple[Floats, Signals]:
        """What the policy says, untempered, of tokens[first:], by one pass over all of them."""
        return vllm_params.of_prompt(await self.ask(tokens, salt, vllm_params.prompt_params(top)), first, top)

    async def score(self, tokens: list[int], first: int, temperature: float, salt: str) -> Floats:
        """Log-probs of tokens[first:]. At a temperature each is a request, as those of a prompt know none."""
        if vllm_params.untempered(temperature):
            return (await self.read(tokens, first, 0, salt))[0]
        found: list[float] = []
        for at in range(first, len(tokens)):
            output = await self.ask(tokens[:at], salt, vllm_params.probe_params(temperature, tokens[at]))
            found.append(vllm_params.of_probe(output, tokens[at]))
        return np.array(found, np.float32)

    async def update(self, manifest: Path) -> None:
        """Takes the weights of a file. Nothing may run."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info={"manifest": str(manifest.resolve())}))
        await self._llm.finish_weight_update()

    async def forget(self) -> bool:
        """Drops all kept prefixes; False where running requests hold some."""
        return bool(await self._llm.reset_prefix_cache())

    def close(self) -> None:
        """Ends the processes."""
        self._llm.shutdown(timeout=_CLOSE_S)


def _arguments(settings: CoreSettings) -> dict[str, Any]:
    return {
        "model": str(settings.folder),
        "dtype": settings.dtype,
        "block_size": settings.block,
        "kv_cache_memory_bytes": settings.kv_bytes,
        "max_model_len": settings.longest,
        "max_num_seqs": settings.max_branches,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # log softmax(logits / T), where nothing is truncated
        "generation_config": "vllm",  # a model's own defaults would truncate what is sampled
        "enforce_eager": settings.eager,
        "weight_transfer_config": {"backend": vllm_weights.BACKEND},
        "disable_log_stats": True,
        **(settings.more or {}),
    }
