"""The segments that vLLM runs, and the counts of their tokens."""

import asyncio
from dataclasses import dataclass, field

from services.rollout.engines.port import Request


@dataclass(eq=False, slots=True)
class SubmittedBranch:
    """A segment that is submitted to vLLM.

    request: the segment.
    name: vLLM's name of the request.
    sampling: whether its forced tokens are scored.
    enough: set once no more of it is to be scored.
    task: the task that samples it.
    """

    request: Request
    name: str
    sampling: bool = False
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Counts:
    """Tokens of ended segments: sampled, prefilled, and found in the cache."""

    sampled: int = 0
    prefilled: int = 0
    cached: int = 0
