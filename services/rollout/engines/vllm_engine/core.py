"""vLLM's AsyncLLM, started as a node needs it, and the few things that the engine asks of it.

A policy may be an adapter (LoRA): then each request names it. On a CPU vLLM 0.32 answers a request without an adapter with
one that another request of the same step names (seen), so requests of two policies never run together.

Its scheduler and its workers are processes of their own; they die with the node (vllm_weights).
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

BLOCK = 32  # tokens; vLLM shares whole blocks only, and 128, its choice on a CPU, would never share a short prompt
_STEP_TOKENS = 2048
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
    """How vLLM is started. kv_bytes: of kv_tokens tokens; longest: tokens of a path; lora_rank: of adapters, 0 for none.

    whole: no prompt is prefilled in parts. vLLM 0.32 needs that on a CPU: part of a request with a seed ends its worker.
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
    """A running vLLM. Coroutines run in the one loop that started it. longest: tokens of a path, its model's context.

    adapter: what requests name where they name none. Nothing may run when it changes.
    """

    def __init__(self, llm: Any, longest: int, at_once: int, usage: Usage) -> None:
        self._llm, self._count, self._longest = llm, 0, longest
        self._probes = asyncio.Semaphore(at_once)
        self.usage = usage
        self.adapter: Any = None

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
            raise installed.absent(error) from None
        usage = Usage(settings.block)
        try:
            arguments = AsyncEngineArgs(**_arguments(settings))
            llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[vllm_usage.logger(usage)])
            return cls(llm, settings.longest, settings.max_branches, usage)
        except ValueError as error:
            raise InvalidInput(
                f"vLLM refuses {settings.folder}: {str(error).splitlines()[0]}"
            ) from None

    def new_id(self) -> str:
        """A name for a request."""
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
        """Runs one request to its end; its last output. An abort ends it, with what there is."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        kind = RequestOutputKind.FINAL_ONLY
        sampling = SamplingParams(
            **params, output_kind=kind, flat_logprobs=True, ignore_eos=True, skip_clone=True
        )
        last = None
        prompt, lora = tokens_input(tokens, cache_salt=salt), adapter or self.adapter
        async for output in self._llm.generate(
            prompt, sampling, name or self.new_id(), lora_request=lora
        ):
            last = output
        return last

    async def abort(self, names: list[str]) -> None:
        """Ends requests."""
        await self._llm.abort(names)

    async def read(
        self, tokens: list[int], first: int, top: int, salt: str
    ) -> tuple[Floats, Signals]:
        """What the policy says, untempered, of tokens[first:], by one pass over all of them."""
        if len(tokens) < self._longest:
            return vllm_params.of_prompt(
                await self.ask(tokens, salt, vllm_params.prompt_params(top)), first, top
            )
        return await self._full(tokens, first, top, salt)

    async def _full(
        self, tokens: list[int], first: int, top: int, salt: str
    ) -> tuple[Floats, Signals]:
        """Of a path that fills the context: vLLM wants room for a token behind a prompt, so its last one is asked for."""
        last = len(tokens) - 1
        said = [await self.read(tokens[:last], first, top, salt)] if first < last else []
        value, signals = await self._probe(tokens, last, 1.0, salt), None if top else Signals()
        while signals is None:  # a probe that ran in the same step mixed them up
            signals = vllm_params.said(
                await self.ask(tokens[:last], salt, vllm_params.top_params(top)), top
            ).signals
        logprobs = [values for values, _ in said] + [np.array([value], np.float32)]
        return np.concatenate(logprobs), joined([signals for _, signals in said] + [signals])

    async def score(
        self,
        tokens: list[int],
        first: int,
        temperature: float,
        salt: str,
        enough: asyncio.Event | None = None,
    ) -> Floats:
        """Log-probs of tokens[first:]; only the first ones, perhaps none, that were known when somebody said that it is
        `enough`. At a temperature each is a request, as those of a prompt know none."""
        ended: asyncio.Future[Any] = asyncio.ensure_future((enough or asyncio.Event()).wait())
        probes: list[asyncio.Future[Any]] = []
        try:
            if vllm_params.untempered(temperature):
                return await self._read_before(ended, tokens, first, salt)
            places = range(first, len(tokens))
            probes = [
                asyncio.ensure_future(self._probe(tokens, at, temperature, salt)) for at in places
            ]
            await _first(
                asyncio.ensure_future(asyncio.wait(probes, return_when=asyncio.FIRST_EXCEPTION)),
                ended,
            )
            answered = list(itertools.takewhile(asyncio.Future.done, probes))
            return np.array([probe.result() for probe in answered], np.float32)
        finally:
            for task in (*probes, ended):
                task.cancel()

    async def _read_before(
        self, ended: "asyncio.Future[Any]", tokens: list[int], first: int, salt: str
    ) -> Floats:
        """Log-probs of tokens[first:] by one pass, or none where it has not ended before something else did."""
        reading = asyncio.ensure_future(self.read(tokens, first, 0, salt))
        try:
            await _first(reading, ended)
            return reading.result()[0] if reading.done() else np.zeros(0, np.float32)
        finally:
            reading.cancel()

    async def _probe(self, tokens: list[int], at: int, temperature: float, salt: str) -> float:
        """The log-prob of tokens[at] after those before it."""
        async with self._probes:
            output = await self.ask(
                tokens[:at], salt, vllm_params.probe_params(temperature, tokens[at])
            )
            return vllm_params.of_probe(output, tokens[at])

    async def update(self, manifest: Path) -> None:
        """Takes the weights of a version. Nothing may run. Raises InvalidInput where a worker could not: what it has then is
        of no use."""
        said = await self._llm.collective_rpc("take", args=(str(manifest.resolve()),))
        if failed := [why for why in said if why]:
            raise InvalidInput(
                f"a worker of vLLM cannot take {manifest.name}: {failed[0].splitlines()[-1]}"
            )

    async def read_back(self, manifest: Path) -> tuple[list[str], list[str]]:
        """Tensors of a file that some worker does not compute with, and those that could not be compared (vllm_proof)."""
        answers = await self._llm.collective_rpc("read_back", args=(str(manifest.resolve()),))
        wrong, unknown = ({name for answer in answers for name in answer[kind]} for kind in (0, 1))
        return sorted(wrong), sorted(unknown)

    async def adapt(self, adapter: Any) -> None:
        """From now on requests name another adapter; the one before is forgotten. Nothing may run."""
        try:
            await self._llm.add_lora(adapter)
        except Exception as error:  # vLLM raises its workers' errors without their classes
            raise InvalidInput(f"vLLM cannot use adapter {adapter.lora_name}: {error}") from None
        if self.adapter is not None:
            await self._llm.remove_lora(self.adapter.lora_int_id)
        self.adapter = adapter

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
        "weight_transfer_config": {"backend": worker_plugin.BACKEND},
        "worker_extension_cls": "services.rollout.engines.vllm_engine.worker.Extension",
        "disable_log_stats": True,
        **(
            {"enable_lora": True, "max_loras": 2, "max_lora_rank": _rank(settings.lora_rank)}
            if settings.lora_rank
            else {}
        ),
        **(
            {"enable_chunked_prefill": False, "max_num_batched_tokens": _batch(settings)}
            if settings.whole
            else {}
        ),
        **(settings.more or {}),
    }


def _batch(settings: CoreSettings) -> int:
    """Tokens of a step: those of the longest path at least."""
    return max(_STEP_TOKENS, settings.longest)


def _rank(most: int) -> int:
    """The least that vLLM offers: a power of two from 8 on."""
    return max(8, 1 << (most - 1).bit_length())


async def _first(*tasks: "asyncio.Future[Any]") -> None:
    """Waits until one of them is done."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
