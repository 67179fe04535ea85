"""A real embedded system for fault tests: scripted engine, a tiny random model, a few steps."""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from banyan.recipe_loader.load import resolve
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.supervisor.backoff import Backoff
from services.supervisor.embedded import embedded
from services.supervisor.supervisor import Supervisor
from services.supervisor.watch import Patience
from tests.supervisor.left_warm import left_warm

OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)
STEPS = 6


def tiny_model(folder: Path, vocab: int = 256) -> Path:
    """Write a Llama of a few thousand weights, random with a fixed seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=2,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def recipe(model: Path, **changes: Any) -> dict[str, Any]:
    """Return a run of a few steps on the scripted engine, slow enough to be killed midway."""
    base: dict[str, Any] = {
        "name": "faults",
        "model": str(model),
        "task": {"name": "arithmetic", "holdout": 0.3},
        "generate": {"policy": "iid", "settings": {"width": 4}, "max_new_tokens": 6},
        "control": {"groups_per_batch": 4, "max_staleness": 0},
        "optimise": {"learning_rate": 1e-3, "checkpoint_every": 2},
        "budget": {"steps": STEPS, "minutes": 5.0},
        "eval": {"samples": 1, "max_rows": 6},
        "resources": {
            "engine": "scripted",
            "engine_settings": {"accuracy": 0.5, "latency_s": 0.02},
        },
    }
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name:
            base.setdefault(part, {})[name] = value
        else:
            base[part] = value
    return base


class System:
    """A running system with one run."""

    def __init__(self, supervisor: Supervisor, state: Path) -> None:
        self.supervisor, self.state = supervisor, state
        self._channel = rpc.channel(
            supervisor.fleet.state.address("gateway"), secret=supervisor.fleet.state.secret
        )
        self.gateway: Any = gw_grpc.GatewayServiceStub(self._channel)
        self.run_id = ""

    async def create(self, data: Mapping[str, Any]) -> str:
        request = gw.CreateRunRequest(
            recipe_json=resolve(dict(data)).model_dump_json(), request_id=uuid.uuid4().hex
        )
        self.run_id = (await rpc.call(self.gateway.CreateRun, request, 60.0, 30.0)).run.run_id
        return self.run_id

    async def look(self) -> gw.GetRunResponse:
        answer: gw.GetRunResponse = await rpc.call(
            self.gateway.GetRun, gw.GetRunRequest(run_id=self.run_id), 20.0, 60.0
        )
        return answer

    async def reach(self, step: int, deadline_s: float = 120.0) -> None:
        """Wait until the run has made `step` steps."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            seen = await self.look()
            assert seen.run.state not in OVER or seen.run.state == rs.RUN_STATE_SUCCEEDED, (
                seen.run.cause
            )
            if (
                seen.progress.HasField("step")
                and seen.progress.step >= step
                and seen.run.state >= rs.RUN_STATE_TRAINING
            ):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"step {step} was not reached in {deadline_s} s: {seen.progress}")

    async def finish(self, deadline_s: float = 180.0) -> rs.Run:
        """Wait until the run is over."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            seen = await self.look()
            if seen.run.state in OVER:
                return seen.run
            if self.supervisor.failure.done():
                raise AssertionError(str(self.supervisor.failure.result()))
            await asyncio.sleep(0.05)
        raise AssertionError(
            f"the run is not over after {deadline_s} s: {seen.run} {seen.progress}"
        )

    def pid(self, service: str) -> int:
        return next(
            c.pid for c in self.supervisor.children.values() if c.service == service and c.running
        )

    def ends(self, service: str) -> int:
        """Return how often a service's process has ended."""
        return sum(len(c.exits) for c in self.supervisor.children.values() if c.service == service)

    async def kill(self, service: str) -> int:
        """Send SIGKILL to a service's process once it runs; return its pid once it has ended."""
        end, pid, before = time.monotonic() + 30, 0, self.ends(service)
        while time.monotonic() < end:
            if not pid:
                with contextlib.suppress(StopIteration):
                    pid = self.pid(service)
                    os.kill(pid, signal.SIGKILL)
            elif self.ends(service) > before:  # else the next kill might meet the same process
                return pid
            await asyncio.sleep(0.02)
        raise AssertionError(f"{service} does not run, or not end")

    async def close(self) -> None:
        await self._channel.close(None)


@contextlib.asynccontextmanager
async def system(
    state: Path,
    extra: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    backoff: Backoff | None = None,
) -> AsyncIterator[System]:
    with left_warm():
        running = embedded(state, extra=extra, patience=patience, backoff=backoff)
        async with running as supervisor:
            made = System(supervisor, state)
            try:
                yield made
            finally:
                await made.close()
