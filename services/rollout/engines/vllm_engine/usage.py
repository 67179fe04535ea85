"""How much of its KV cache vLLM uses, and how far it is, as its scheduler says after each step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Usage:
    """share: of the cache, by what runs; what is only kept for others counts as free. steps: in which something ran."""

    block: int
    blocks: int = 0
    share: float = 0.0
    steps: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the blocks in use have room for."""
        return round(self.share * self.blocks) * self.block


def logger(usage: Usage) -> Callable[[Any, int], Any]:
    """A maker of vLLM's stat loggers that notes the usage and logs nothing."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Noting(StatLoggerBase):  # type: ignore[misc]
        """Notes what the scheduler says."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            usage.blocks = (vllm_config.cache_config.num_gpu_blocks or 1) - 1

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            """After each step."""
            if scheduler_stats is not None:
                usage.share = scheduler_stats.kv_cache_usage
            usage.steps += 1

        def log_engine_initialized(self) -> None:
            """Nothing to say."""

    return Noting
