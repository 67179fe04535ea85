"""What a run takes of the machine."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from banyan.recipe.part import Part, Settings


class Resources(Part):
    """What the run takes of the machine."""

    LATER = frozenset(
        {
            "learner_ranks",
            "learner_device",
            "refresh",
            "drain_s",
            "weights",
            "weights_base_every",
            "weights_fallback",
        }
    )

    rollout_nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Rollout processes that the launcher starts; more may join."""
    learner_ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that train one model together, its weights cut over them (FSDP2). Above 1 the learner starts the others on
    its machine, unless torchrun has started all of them; they share its threads."""
    learner_device: Literal["auto", "cpu", "cuda"] = "auto"
    """What the learner trains on. auto: an accelerator for each rank, where PyTorch sees as many and deterministic is false,
    else the CPU."""
    threads: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Torch threads per process. auto: all cores with max_staleness 0, else the cores divided; where several runs have
    processes, of its share of the cores, divided anew as runs begin and end (a deterministic run: of all; vLLM and several
    learner_ranks keep what they began with)."""
    kv_tokens: Annotated[int, Field(ge=256, le=2**40)] = 65_536
    """Tokens of KV cache that a rollout node may hold."""
    max_branches: Annotated[int, Field(ge=2, le=65_536)] = 64
    """Branches that a rollout node decodes at once."""
    engine: Literal["torch", "vllm", "scripted"] = "torch"
    """vllm: for large models (`make vllm`). scripted: a tiny known token distribution without torch, for tests."""
    engine_settings: Settings = {}
    """Settings of the engine. vllm: block_size, eager, lora_rank, arguments."""
    refresh: Literal["cut", "drain"] = "cut"
    """A new policy. cut: running branches end and go on under it. drain: they may end first, and nothing new is begun."""
    drain_s: Annotated[float, Field(gt=0, le=100.0)] = 10.0
    """refresh drain: how long running branches may go on before they are cut."""
    weights: Literal["file", "nats", "nccl"] = "file"
    """How new weights reach the nodes. file: a folder that nodes of the host map. nats: an object store on NATS that holds
    whole versions, and between them what changed. nccl: no file, the learner broadcasts to the workers of engine vllm, by
    NCCL between accelerators, by gloo elsewhere. Joined nodes fetch over gRPC in any case."""
    weights_base_every: Annotated[int, Field(ge=1, le=1000)] = 20
    """weights nats: versions from one whole one to the next; sooner where changes come to half of a whole one."""
    weights_fallback: Literal["none", "fetch"] = "none"
    """weights nats: what a node does that cannot have a version from there. none: it asks for a whole one, and its trees
    wait. fetch: it asks for one, says so in its log, and fetches this one from the learner over gRPC."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of sampling and of the learner's products; master weights: float32. auto: bfloat16 if the CPU has it."""

    @model_validator(mode="after")
    def _carried(self) -> "Resources":
        if self.weights == "nccl" and self.engine != "vllm":
            raise ValueError(
                f"weights nccl hands weights to the workers of engine vllm, and engine is {self.engine}: use file on one"
                " host, nats across hosts"
            )
        more = self.engine_settings.get("arguments")
        if (
            self.weights == "nccl"
            and isinstance(more, Mapping)
            and more.get("data_parallel_size", 1) != 1
        ):
            raise ValueError(
                "weights nccl takes no engine_settings.arguments.data_parallel_size: raise rollout_nodes instead"
            )
        if self.weights_fallback != "none" and self.weights != "nats":
            raise ValueError(
                "weights_fallback says what to do without weights nats: set weights to nats, or leave it out"
            )
        return self
