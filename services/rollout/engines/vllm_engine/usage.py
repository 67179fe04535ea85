"""The use of vLLM's KV cache and its number of steps, as its scheduler reports them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Usage:
    """Use of the KV cache.

    block: tokens of a block.
    blocks: blocks of the cache.
    share: share of the cache in use by running requests; merely cached blocks count as free.
    steps: steps in which any request ran.
    """

    block: int
    blocks: int = 0
    share: float = 0.0
    steps: int = 0

    @property
    def tokens(self) -> int:
        """Capacity of the blocks in use, in tokens."""
        return round(self.share * self.blocks) * self.block


def logger(usage: Usage) -> Callable[[Any, int], Any]:
    """Return a factory of vLLM's stat loggers that records the usage and logs nothing."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class UsageRecorder(StatLoggerBase):  # type: ignore[misc]
        """Recorder of the scheduler's reports."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            usage.blocks = (vllm_config.cache_config.num_gpu_blocks or 1) - 1

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            """Record the report of a step."""
            if scheduler_stats is not None:
                usage.share = scheduler_stats.kv_cache_usage
            usage.steps += 1

        def log_engine_initialized(self) -> None:
            """Log nothing."""

    return UsageRecorder
