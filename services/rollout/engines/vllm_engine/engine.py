"""The vllm engine: vLLM's AsyncLLM behind the port, in a loop of its own that runs while `step` or a command does.

What vLLM 0.32 does on a CPU, measured: siblings of a cold trunk that arrive together prefill it once (8 branches of 100
tokens: 0, then 7 times 96 of them cached), so no trunk is sent ahead; only whole blocks are shared. Prompt log-probs ignore
the temperature, and are garbage where a prefix was read from the cache, so scoring reads none. An update leaves the prefix
cache as it is: each policy has its own cache salt. A prompt that is prefilled in parts ends its worker (vllm_core).

A seed is the low bits of the branch's draw key: draws are reproducible, but not those of the other engines. Truncated
sampling costs a scoring pass for each segment, for its log-probs over the full vocabulary (at a temperature other than 1 a
request for each token); entropies are unknown.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from banyan.errors import InvalidInput, TemporaryError
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Floats, IntTokens
from banyan.signals import Signals, joined
from services.rollout.engines.port import (
    NO_ROOM,
    UNPROVEN,
    EngineStats,
    Key,
    Request,
    Sampled,
    Tokenizer,
    no_floats,
)
from services.rollout.engines.vllm_engine import params as vllm_params
from services.rollout.engines.vllm_engine.core import Core
from services.rollout.engines.vllm_engine.update import Updates

_TURN_S = 0.2  # how long a step may wait, unless something ends or somebody wakes it
_AHEAD = 2  # as many again as vLLM runs at once lie ready there: where all end in one step, the next is short of none
_STOP_S = 0.02  # a request that vLLM did not know yet is aborted again
_PARTIAL_S = (
    2.0  # what of a cut segment is not scored by then is sampled again, which costs no more
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """kv_tokens: what the cache holds; context: the model's longest path, 0 for any."""

    kv_tokens: int
    max_branches: int
    context: int = 0


@dataclass(eq=False, slots=True)
class _Branch:
    request: Request
    name: str
    sampling: bool = False  # whether its forced tokens are behind it
    enough: asyncio.Event = field(default_factory=asyncio.Event)  # no more of it is scored
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class _Counts:
    sampled: int = 0
    prefilled: int = 0
    cached: int = 0


class VllmEngine:
    """Samples with vLLM. It runs `max_branches` segments at once, and as many lie ready; the others wait here."""

    def __init__(
        self,
        core: Core,
        loop: asyncio.AbstractEventLoop,
        tokenizer: Tokenizer,
        bounds: Bounds,
        policy: PolicyVersion,
        updates: Updates,
    ) -> None:
        self.tokenizer, self._updates = tokenizer, updates
        self._core, self._loop, self._bounds, self._policy = core, loop, bounds, policy
        self._proven, self._held, self._generation = True, False, 0
        self._waiting: dict[Key, Request] = {}
        self._running: dict[Key, _Branch] = {}
        self._ended: list[Sampled] = []
        self._failed: BaseException | None = None
        self._moved = asyncio.Event()
        self._counts = _Counts()
        self.turn_s = _TURN_S

    # -- what callers say --

    def submit(self, request: Request) -> None:
        """Queues a segment. Raises InvalidInput if vLLM could never run it, or not say of it what is asked."""
        prefix, new = len(request.prefix_P) + len(request.forced), request.sampling.max_new_tokens
        if not len(request.prefix_P) or new < 1:
            raise InvalidInput(
                "a request needs a prefix of at least one token and room for at least one new one"
            )
        if 0 < self._bounds.context < prefix + new:
            raise InvalidInput(
                f"a path of {prefix + new} tokens ({prefix} of prompt and trunk, {new} new) is longer than the model's"
                f" context of {self._bounds.context} (max_position_embeddings); shorten the prompt or"
                " generate.max_new_tokens"
            )
        if prefix + new > self._bounds.kv_tokens:
            most = self._bounds.kv_tokens
            message = f"a path of {prefix + new} tokens cannot fit into resources.kv_tokens={most}; raise it"
            raise InvalidInput(message, reason=NO_ROOM)
        vllm_params.check(request)
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stops a segment, running or waiting."""
        if (request := self._waiting.pop(key, None)) is not None:
            return self._unstarted(request)
        branch = self._running.get(key)
        if branch is None:
            return None
        self._loop.run_until_complete(self._stop([branch]))
        return self._taken(key)

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """Takes new weights. Raises InvalidInput, before any change, if they are of another model; TemporaryError if vLLM
        does not use them (vllm_update): then nothing is sampled until an update is proven, and the next step returns what
        was cut.

        The same weights under a new number (a step that changed nothing) cut nothing.
        """
        if self._proven and policy.digest == self._policy.digest and policy.digest:
            self._policy, self._held = policy, False
            return []
        if weights is not None:
            self._updates.check(weights)
        self._recall(list(self._running.values()))
        if weights is not None:
            self._proven = False
            self._loop.run_until_complete(self._updates.take(policy, weights))
            self._proven = True
        self._policy, self._held = policy, False
        self.forget()
        cut = [s for s in self._ended if s.finish is Finish.ABORTED]
        self._ended = [s for s in self._ended if s.finish is not Finish.ABORTED]
        return cut

    def hold(self, held: bool) -> None:
        """Whether nothing more is given to vLLM. What lies ready there, behind as many as run at once, comes back."""
        self._held = held
        if held:
            self._recall(list(self._running.values())[self._bounds.max_branches :])

    def forget(self) -> None:
        """Drops all kept prefixes."""
        self._generation += 1  # running requests may hold blocks that cannot be dropped: nobody finds them under a new salt
        self._loop.run_until_complete(self._core.forget())

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:], of a prefix that nothing was kept of."""
        if not 1 <= first < len(tokens_T):
            raise InvalidInput(
                f"first={first} must lie in 1..{len(tokens_T) - 1}: a first token has no log-prob"
            )
        if not self._proven:
            raise TemporaryError(
                "vLLM computes with no policy that is proven; ask again", reason=UNPROVEN
            )
        self._generation += 1
        return self._loop.run_until_complete(
            self._core.score(tokens_T.tolist(), first, temperature, self._salt())
        )

    def stats(self) -> EngineStats:
        """Counts; kv_tokens as vLLM's scheduler said last."""
        c, given = self._counts, len(self._running)
        running = min(given, self._bounds.max_branches)
        waiting, kv_tokens = (
            len(self._waiting) + given - running,
            self._core.usage.tokens if given else 0,
        )
        steps, unproven = self._core.usage.steps, self._updates.unproven
        return EngineStats(
            c.sampled, c.prefilled, c.cached, steps, running, waiting, kv_tokens, unproven
        )

    @property
    def _admits(self) -> bool:
        return self._proven and not self._held

    @property
    def busy(self) -> bool:
        return bool(self._running or self._ended or (self._waiting and self._admits))

    def step(self) -> list[Sampled]:
        """Gives vLLM what it has room for, and waits until something ended, but not long."""
        if self._admits:
            self._admit()
        if not self._ended and self._running:
            self._loop.run_until_complete(self._wait())
        if self._failed is not None:
            raise self._failed
        ended, self._ended = self._ended, []
        return ended

    def wake(self) -> None:
        """Ends the wait of a step, or of the next one; for other threads."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._moved.set)

    def close(self) -> None:
        """Ends vLLM's processes."""
        for branch in self._running.values():
            if branch.task is not None:
                branch.task.cancel()
        self._core.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    # -- branches --

    def _admit(self) -> None:
        free = _AHEAD * self._bounds.max_branches - len(self._running)
        for key in list(self._waiting)[: max(free, 0)]:
            branch = _Branch(self._waiting.pop(key), self._core.new_id())
            self._running[key] = branch
            branch.task = self._loop.create_task(self._grow(branch))

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), self.turn_s)
        self._moved.clear()  # behind the wait: what moved since the last one ends this one at once

    async def _grow(self, branch: _Branch) -> None:
        """Samples a segment, from its forced tokens to its end."""
        try:
            one = await self._sample(branch)
            self._ended.append(one)
            del self._running[branch.request.key]
        except (
            Exception
        ) as error:  # whatever vLLM raises, the node must end with it instead of waiting for ever
            self._failed = error
        finally:
            self._moved.set()

    async def _sample(self, branch: _Branch) -> Sampled:
        request, tempered = branch.request, no_floats()
        prefix, given = request.prefix_P.tolist(), list(request.forced)
        if given and not vllm_params.untempered(request.sampling.temperature):
            tempered = await self._core.score(
                prefix + given, len(prefix), request.sampling.temperature, self._salt()
            )
        branch.sampling = True
        params = vllm_params.sampling_params(request, self.tokenizer.eos)
        output = await self._core.ask(prefix + given, self._salt(), params, branch.name)
        said = vllm_params.said(output, request.signals.top)
        if given and not said.tokens:
            return self._unstarted(request)
        forced = (
            (tempered, Signals())
            if len(tempered) or not given
            else await self._forced(request, output)
        )
        return await self._segment(branch, forced, said)

    async def _forced(self, request: Request, output: Any) -> tuple[Floats, Signals]:
        first, top = len(request.prefix_P), request.signals.top
        if vllm_params.reached(output, first):
            return vllm_params.of_prompt(output, first, top)
        return await self._core.read(
            [*request.prefix_P.tolist(), *request.forced], first, top, self._salt()
        )

    async def _segment(
        self, branch: _Branch, forced: tuple[Floats, Signals], said: vllm_params.RequestOutput
    ) -> Sampled:
        """Puts together what vLLM said, and asks for what it did not say."""
        request = branch.request
        prefix, sampling, tokens = (
            request.prefix_P.tolist(),
            request.sampling,
            [*request.forced, *said.tokens],
        )
        logprobs, signals, path = said.logprobs_T, said.signals, prefix + tokens
        first = len(path) - len(said.tokens)
        if sampling.truncated and sampling.temperature and said.tokens:
            logprobs = await self._core.score(
                path, first, sampling.temperature, self._salt(), branch.enough
            )
            if len(logprobs) < len(said.tokens):
                if not len(logprobs):
                    return self._unstarted(request)
                said, tokens = (
                    said.first(len(logprobs)),
                    tokens[: len(request.forced) + len(logprobs)],
                )
        if signals is None:
            signals = (await self._core.read(path, first, request.signals.top, self._salt()))[1]
        cached = min(said.cached_tokens, len(prefix))
        self._count(
            len(prefix) + len(request.forced) - said.cached_tokens, cached, len(said.tokens)
        )
        return Sampled(
            key=request.key,
            tokens_T=np.array(tokens, np.int32),
            logprobs_T=np.concatenate((forced[0], logprobs)),
            finish=said.finish,
            policy=self._policy,
            sampled_logprobs_T=vllm_params.drawn_logprobs(request, said),
            cached_tokens=cached,
            signals=joined([forced[1], signals] if request.forced else [signals]),
        )

    def _count(self, prefilled: int, cached: int, sampled: int) -> None:
        self._counts.prefilled += prefilled
        self._counts.cached += cached
        self._counts.sampled += sampled

    def _unstarted(self, request: Request) -> Sampled:
        return Sampled(
            request.key, np.zeros(0, np.int32), no_floats(), Finish.ABORTED, self._policy
        )

    async def _stop(self, branches: list[_Branch]) -> None:
        """Ends branches and waits until they have said what there is of them."""
        tasks = {b.task for b in branches if b.task is not None}
        for branch in branches:
            self._loop.call_later(_PARTIAL_S, branch.enough.set)
        for branch in branches:
            if not branch.sampling and branch.task is not None:
                branch.task.cancel()
        while tasks:
            await self._core.abort([b.name for b in branches])
            _, tasks = await asyncio.wait(tasks, timeout=_STOP_S)
        for branch in branches:
            if (
                self._running.pop(branch.request.key, None) is not None
            ):  # its task never came to an end of its own
                self._ended.append(self._unstarted(branch.request))

    def _taken(self, key: Key) -> Sampled | None:
        for at, sampled in enumerate(self._ended):
            if sampled.key == key:
                return self._ended.pop(at)
        return None

    def _recall(self, branches: list[_Branch]) -> None:
        """Stops branches. One without a token is not cut: it waits, ahead of the others."""
        self._loop.run_until_complete(self._stop(branches))
        empty = {s.key for s in self._ended if not len(s.tokens_T)}
        self._ended = [s for s in self._ended if s.key not in empty]
        self._waiting = {
            b.request.key: b.request for b in branches if b.request.key in empty
        } | self._waiting

    def _salt(self) -> str:
        """Names the KV that a request may share: of this policy, since the last time that all was forgotten."""
        return f"{self._policy.digest.hex()}/{self._generation}"
