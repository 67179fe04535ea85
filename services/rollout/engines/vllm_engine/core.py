"""vLLM's AsyncLLM, started as a node needs it, with the few calls that the engine makes.

A policy may be an adapter (LoRA): then each request names it. On a CPU vLLM 0.32 answers a request
without an adapter with one that another request of the same step names (observed), so requests of
two policies never run together.

vLLM's scheduler and workers are processes of their own; they die with the node (`worker_plugin`).
"""

import asyncio
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from banyan.errors import InvalidInput
from banyan.segment import Floats
from banyan.signals import Signals, joined
from services.rollout.engines.vllm_engine import installed, worker_plugin
from services.rollout.engines.vllm_engine import params as vllm_params
from services.rollout.engines.vllm_engine import usage as vllm_usage
from services.rollout.engines.vllm_engine.usage import Usage

# Tokens of a block. vLLM shares whole blocks only, and 128, its default on a CPU, would never share
# a short prompt.
BLOCK = 32
_STEP_TOKENS = 2048
_CLOSE_S = 2.0  # an idle scheduler process ignores a request to end, and is killed then
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # the model is a folder
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Threads bound to cores would share them badly with the learner.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Settings of vLLM.

    folder: the model.
    dtype: type of the arithmetic.
    kv_bytes: memory of the KV cache.
    max_branches: requests that run at once.
    longest: tokens of the longest path.
    threads: OpenMP threads, None for vLLM's default.
    block: tokens of a KV block.
    eager: no compiled kernels.
    lora_rank: largest rank of adapters, 0 for none.
    whole: no prompt is prefilled in parts. vLLM 0.32 needs that on a CPU: a partly prefilled
        request with a seed ends its worker.
    more: further arguments of vLLM's EngineArgs.
    """

    folder: Path
    dtype: str
    kv_bytes: int
    max_branches: int
    longest: int
    threads: int | None = None
    block: int = BLOCK
    eager: bool = True
    lora_rank: int = 0
    whole: bool = False
    more: Mapping[str, Any] | None = None


class Core:
    """A running vLLM. Its coroutines run in the loop that started it.

    usage: use of its KV cache.
    adapter: adapter of requests that name none. No request may run when it changes.
    """

    def __init__(self, llm: Any, longest: int, max_probes: int, usage: Usage) -> None:
        self._llm, self._count, self._longest = llm, 0, longest
        self._probes = asyncio.Semaphore(max_probes)
        self.usage = usage
        self.adapter: Any = None

    @classmethod
    async def start(cls, settings: CoreSettings) -> "Core":
        """Start the processes and load the model. Raise NotReady where vLLM is not installed."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if settings.threads:
            os.environ["OMP_NUM_THREADS"] = str(settings.threads)
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise installed.absent(error) from None
        usage = Usage(settings.block)
        try:
            arguments = AsyncEngineArgs(**_arguments(settings))
            loggers = [vllm_usage.logger(usage)]
            llm = AsyncLLM.from_engine_args(arguments, stat_loggers=loggers)
            return cls(llm, settings.longest, settings.max_branches, usage)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput(f"vLLM refuses {settings.folder}: {reason}") from None

    def new_id(self) -> str:
        """Return a unique name for a request."""
        self._count += 1
        return str(self._count)

    async def ask(
        self,
        tokens: list[int],
        salt: str,
        params: Mapping[str, Any],
        name: str = "",
        adapter: Any = None,
    ) -> Any:
        """Run one request to its end and return its last output; an abort ends it early."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            **params,
            output_kind=RequestOutputKind.FINAL_ONLY,
            flat_logprobs=True,
            ignore_eos=True,
            skip_clone=True,
        )
        last = None
        prompt = tokens_input(tokens, cache_salt=salt)
        outputs = self._llm.generate(
            prompt, sampling, name or self.new_id(), lora_request=adapter or self.adapter
        )
        async for output in outputs:
            last = output
        return last

    async def abort(self, names: list[str]) -> None:
        """End requests."""
        await self._llm.abort(names)

    async def read(
        self, tokens: list[int], first: int, top: int, salt: str
    ) -> tuple[Floats, Signals]:
        """Return untempered log-probs and signals of tokens[first:], by one pass over all."""
        if len(tokens) < self._longest:
            output = await self.ask(tokens, salt, vllm_params.prompt_params(top))
            return vllm_params.read_prompt(output, first, top)
        return await self._read_full(tokens, first, top, salt)

    async def _read_full(
        self, tokens: list[int], first: int, top: int, salt: str
    ) -> tuple[Floats, Signals]:
        """Return the same for a path that fills the context.

        vLLM needs capacity for a token behind a prompt, so the last token is a request of its own.
        """
        last = len(tokens) - 1
        logprobs: list[Floats] = []
        parts: list[Signals] = []
        if first < last:
            before, before_signals = await self.read(tokens[:last], first, top, salt)
            logprobs.append(before)
            parts.append(before_signals)
        value = await self._probe(tokens, last, 1.0, salt)
        logprobs.append(np.array([value], np.float32))
        signals = None if top else Signals()
        while signals is None:  # mixed up by a probe that ran in the same step
            output = await self.ask(tokens[:last], salt, vllm_params.top_params(top))
            signals = vllm_params.read_output(output, top).signals
        return np.concatenate(logprobs), joined([*parts, signals])

    async def score(
        self,
        tokens: list[int],
        first: int,
        temperature: float,
        salt: str,
        enough: asyncio.Event | None = None,
    ) -> Floats:
        """Return log-probs of tokens[first:].

        Return only the first ones, perhaps none, that are known when `enough` is set. At a
        temperature each token is a request, as log-probs of prompts ignore the temperature.
        """
        stopped: asyncio.Future[Any] = asyncio.ensure_future((enough or asyncio.Event()).wait())
        probes: list[asyncio.Future[Any]] = []
        try:
            if vllm_params.untempered(temperature):
                return await self._read_unless(stopped, tokens, first, salt)
            probes = [
                asyncio.ensure_future(self._probe(tokens, at, temperature, salt))
                for at in range(first, len(tokens))
            ]
            waiting = asyncio.wait(probes, return_when=asyncio.FIRST_EXCEPTION)
            await _first(asyncio.ensure_future(waiting), stopped)
            done = itertools.takewhile(asyncio.Future.done, probes)
            return np.array([probe.result() for probe in done], np.float32)
        finally:
            for task in (*probes, stopped):
                task.cancel()

    async def _read_unless(
        self, stopped: "asyncio.Future[Any]", tokens: list[int], first: int, salt: str
    ) -> Floats:
        """Return log-probs of tokens[first:] by one pass, or none if stopped before its end."""
        reading = asyncio.ensure_future(self.read(tokens, first, 0, salt))
        try:
            await _first(reading, stopped)
            return reading.result()[0] if reading.done() else np.zeros(0, np.float32)
        finally:
            reading.cancel()

    async def _probe(self, tokens: list[int], at: int, temperature: float, salt: str) -> float:
        """Return the log-prob of tokens[at] after those before it."""
        async with self._probes:
            params = vllm_params.probe_params(temperature, tokens[at])
            output = await self.ask(tokens[:at], salt, params)
            return vllm_params.read_probe(output, tokens[at])

    async def update(self, manifest: Path) -> None:
        """Load the weights of a version. No request may run.

        Raise InvalidInput where a worker could not: its weights are unusable then.
        """
        answers = await self._llm.collective_rpc("take", args=(str(manifest.resolve()),))
        if errors := [error for error in answers if error]:
            reason = errors[0].splitlines()[-1]
            raise InvalidInput(f"a worker of vLLM cannot take {manifest.name}: {reason}")

    async def read_back(self, manifest: Path) -> tuple[list[str], list[str]]:
        """Return tensors of a file that some worker does not use, and those not comparable."""
        answers = await self._llm.collective_rpc("read_back", args=(str(manifest.resolve()),))
        wrong = {name for answer in answers for name in answer[0]}
        unknown = {name for answer in answers for name in answer[1]}
        return sorted(wrong), sorted(unknown)

    async def adapt(self, adapter: Any) -> None:
        """Make requests use another adapter, and drop the one before. No request may run."""
        try:
            await self._llm.add_lora(adapter)
        except Exception as error:  # vLLM raises its workers' errors without their classes
            raise InvalidInput(f"vLLM cannot use adapter {adapter.lora_name}: {error}") from None
        if self.adapter is not None:
            await self._llm.remove_lora(self.adapter.lora_int_id)
        self.adapter = adapter

    async def forget(self) -> bool:
        """Drop all cached prefixes; return False where running requests use some."""
        return bool(await self._llm.reset_prefix_cache())

    def close(self) -> None:
        """End the processes."""
        self._llm.shutdown(timeout=_CLOSE_S)


def _arguments(settings: CoreSettings) -> dict[str, Any]:
    arguments = {
        "model": str(settings.folder),
        "dtype": settings.dtype,
        "block_size": settings.block,
        "kv_cache_memory_bytes": settings.kv_bytes,
        "max_model_len": settings.longest,
        "max_num_seqs": settings.max_branches,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # log softmax(logits / T) unless truncated
        "generation_config": "vllm",  # a model's own defaults would truncate the distribution
        "enforce_eager": settings.eager,
        "weight_transfer_config": {"backend": worker_plugin.BACKEND},
        "worker_extension_cls": "services.rollout.engines.vllm_engine.worker.Extension",
        "disable_log_stats": True,
    }
    if settings.lora_rank:
        arguments["enable_lora"] = True
        arguments["max_loras"] = 2
        arguments["max_lora_rank"] = _supported_rank(settings.lora_rank)
    if settings.whole:
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(_STEP_TOKENS, settings.longest)
    return arguments | dict(settings.more or {})


def _supported_rank(rank: int) -> int:
    """Return the smallest sufficient rank that vLLM supports: a power of two from 8 on."""
    return max(8, 1 << (rank - 1).bit_length())


async def _first(*tasks: "asyncio.Future[Any]") -> None:
    """Wait until one of the tasks is done."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
