"""The vllm engine: vLLM's AsyncLLM behind the port, in a loop that runs during steps and commands.

Properties of vLLM 0.32 on a CPU, measured: siblings of a cold trunk that arrive together prefill it
once (8 branches of 100 tokens: 0, then 7 times 96 of them cached), so no trunk is sent ahead; only
whole blocks are shared. Prompt log-probs ignore the temperature, and are garbage where a prefix was
read from the cache, so scoring reads none. An update leaves the prefix cache as it is: each policy
has its own cache salt. A prompt that is prefilled in parts ends its worker (`core`).

A seed is the low bits of the branch's draw key: draws are reproducible, but not those of the other
engines. Truncated sampling costs a scoring pass for each segment, for its log-probs over the full
vocabulary (at a temperature other than 1 a request for each token); entropies are unknown.
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
    UNPROVEN,
    EngineStats,
    Key,
    Request,
    Sampled,
    Tokenizer,
    no_floats,
)
from services.rollout.engines.vllm_engine import params as vllm_params
from services.rollout.engines.vllm_engine.bounds import Bounds
from services.rollout.engines.vllm_engine.core import Core
from services.rollout.engines.vllm_engine.params import RequestOutput
from services.rollout.engines.vllm_engine.update import Updates

_TURN_S = 0.2  # longest wait of a step in which no segment ends
# Requests submitted to vLLM, as a multiple of those that it runs: where all end in one step, the
# next one does not lack any.
_AHEAD = 2
_STOP_S = 0.02  # interval of aborts: vLLM ignores one of a request that it did not know yet
# Bound of the scoring of an aborted segment: the tokens not scored by then are sampled again, which
# costs no more.
_PARTIAL_S = 2.0


@dataclass(eq=False, slots=True)
class _Branch:
    """A segment that vLLM runs.

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
class _Counts:
    sampled: int = 0
    prefilled: int = 0
    cached: int = 0


class VllmEngine:
    """Engine that samples with vLLM.

    It runs `max_branches` segments at once and submits as many again; the others wait here.
    """

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
        self._core, self._loop = core, loop
        self._bounds, self._policy = bounds, policy
        self._proven, self._on_hold, self._generation = True, False, 0
        self._waiting: dict[Key, Request] = {}
        self._running: dict[Key, _Branch] = {}
        self._ended: list[Sampled] = []
        self._error: BaseException | None = None
        self._moved = asyncio.Event()
        self._counts = _Counts()
        self.turn_s = _TURN_S

    # -- the port --

    def submit(self, request: Request) -> None:
        """Queue a segment.

        Raise InvalidInput if vLLM could never run it, or not return its signals.
        """
        self._bounds.check(request)
        vllm_params.check(request)
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stop a segment, running or waiting, and return it; None if it is not here."""
        if (request := self._waiting.pop(key, None)) is not None:
            return self._unstarted(request)
        branch = self._running.get(key)
        if branch is None:
            return None
        self._loop.run_until_complete(self._stop([branch]))
        return self._pop_ended(key)

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """Load new weights and return the aborted segments.

        Raise InvalidInput, before any change, if they are of another model; TemporaryError if vLLM
        does not use them (`update`): then no segment is sampled until an update is proven, and the
        next step returns the aborted segments. The same weights under a new number (a step that
        changed nothing) abort nothing.
        """
        if self._proven and policy.digest == self._policy.digest and policy.digest:
            self._policy, self._on_hold = policy, False
            return []
        if weights is not None:
            self._updates.check(weights)
        self._recall(list(self._running.values()))
        if weights is not None:
            self._proven = False
            self._loop.run_until_complete(self._updates.load(policy, weights))
            self._proven = True
        self._policy, self._on_hold = policy, False
        self.forget()
        aborted = [s for s in self._ended if s.finish is Finish.ABORTED]
        self._ended = [s for s in self._ended if s.finish is not Finish.ABORTED]
        return aborted

    def hold(self, on: bool) -> None:
        """Stop or resume admission.

        On hold, the submitted segments behind those that run at once are recalled from vLLM.
        """
        self._on_hold = on
        if on:
            self._recall(list(self._running.values())[self._bounds.max_branches :])

    def forget(self) -> None:
        """Drop all cached prefixes."""
        # Running requests may use blocks that cannot be dropped: a new salt hides them.
        self._generation += 1
        self._loop.run_until_complete(self._core.forget())

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Return log-probs of tokens[first:] without cached prefixes."""
        if not 1 <= first < len(tokens_T):
            raise InvalidInput(
                f"first={first} must lie in 1..{len(tokens_T) - 1}: a first token has no log-prob"
            )
        if not self._proven:
            raise TemporaryError(
                "vLLM computes with no policy that is proven; ask again", reason=UNPROVEN
            )
        self._generation += 1
        scoring = self._core.score(tokens_T.tolist(), first, temperature, self._salt())
        return self._loop.run_until_complete(scoring)

    def stats(self) -> EngineStats:
        """Return the counts; kv_tokens are of the scheduler's last report."""
        counts, submitted = self._counts, len(self._running)
        running = min(submitted, self._bounds.max_branches)
        return EngineStats(
            sampled_tokens=counts.sampled,
            prefilled_tokens=counts.prefilled,
            cached_tokens=counts.cached,
            steps=self._core.usage.steps,
            running=running,
            waiting=len(self._waiting) + submitted - running,
            kv_tokens=self._core.usage.tokens if submitted else 0,
            unproven=self._updates.unproven,
        )

    @property
    def _admits(self) -> bool:
        return self._proven and not self._on_hold

    @property
    def busy(self) -> bool:
        return bool(self._running or self._ended or (self._waiting and self._admits))

    def step(self) -> list[Sampled]:
        """Submit segments to vLLM, and wait, but not long, until any ends."""
        if self._admits:
            self._admit()
        if not self._ended and self._running:
            self._loop.run_until_complete(self._wait())
        if self._error is not None:
            raise self._error
        ended, self._ended = self._ended, []
        return ended

    def wake(self) -> None:
        """End the wait of a step, or of the next one. Any thread may call it."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._moved.set)

    def close(self) -> None:
        """End vLLM's processes."""
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
        self._moved.clear()  # after the wait: an event since the last step ends this wait at once

    async def _grow(self, branch: _Branch) -> None:
        """Sample a segment, from its forced tokens to its end."""
        try:
            segment = await self._sample(branch)
            self._ended.append(segment)
            del self._running[branch.request.key]
        except Exception as error:  # the node must end with any error of vLLM instead of waiting
            self._error = error
        finally:
            self._moved.set()

    async def _sample(self, branch: _Branch) -> Sampled:
        request, tempered_T = branch.request, no_floats()
        prefix, forced = request.prefix_P.tolist(), list(request.forced)
        temperature = request.sampling.temperature
        if forced and not vllm_params.untempered(temperature):
            path = prefix + forced
            tempered_T = await self._core.score(path, len(prefix), temperature, self._salt())
        branch.sampling = True
        params = vllm_params.sampling_params(request, self.tokenizer.eos)
        raw = await self._core.ask(prefix + forced, self._salt(), params, branch.name)
        output = vllm_params.read_output(raw, request.signals.top)
        if forced and not output.tokens:
            return self._unstarted(request)
        if len(tempered_T) or not forced:
            forced_logprobs, forced_signals = tempered_T, Signals()
        else:
            forced_logprobs, forced_signals = await self._read_forced(request, raw)
        return await self._segment(branch, forced_logprobs, forced_signals, output)

    async def _read_forced(self, request: Request, raw: Any) -> tuple[Floats, Signals]:
        first, top = len(request.prefix_P), request.signals.top
        if vllm_params.reached(raw, first):
            return vllm_params.read_prompt(raw, first, top)
        path = [*request.prefix_P.tolist(), *request.forced]
        return await self._core.read(path, first, top, self._salt())

    async def _segment(
        self,
        branch: _Branch,
        forced_logprobs: Floats,
        forced_signals: Signals,
        output: RequestOutput,
    ) -> Sampled:
        """Make the segment of an output, and request its missing log-probs and signals."""
        request, sampling = branch.request, branch.request.sampling
        prefix, signals = request.prefix_P.tolist(), output.signals
        path = [*prefix, *request.forced, *output.tokens]
        first = len(prefix) + len(request.forced)
        logprobs_T = output.logprobs_T
        if sampling.truncated and sampling.temperature and output.tokens:
            logprobs_T = await self._core.score(
                path, first, sampling.temperature, self._salt(), branch.enough
            )
            if not len(logprobs_T):
                return self._unstarted(request)
            if len(logprobs_T) < len(output.tokens):
                output = output.first(len(logprobs_T))
        if signals is None:
            _, signals = await self._core.read(path, first, request.signals.top, self._salt())
        cached = min(output.cached_tokens, len(prefix))
        self._counts.prefilled += first - output.cached_tokens
        self._counts.cached += cached
        self._counts.sampled += len(output.tokens)
        return Sampled(
            key=request.key,
            tokens_T=np.array([*request.forced, *output.tokens], np.int32),
            logprobs_T=np.concatenate((forced_logprobs, logprobs_T)),
            finish=output.finish,
            policy=self._policy,
            sampled_logprobs_T=vllm_params.sampled_logprobs(request, output),
            cached_tokens=cached,
            signals=joined([forced_signals, signals] if request.forced else [signals]),
        )

    def _unstarted(self, request: Request) -> Sampled:
        return Sampled(
            key=request.key,
            tokens_T=np.zeros(0, np.int32),
            logprobs_T=no_floats(),
            finish=Finish.ABORTED,
            policy=self._policy,
        )

    async def _stop(self, branches: list[_Branch]) -> None:
        """Stop branches and wait for their segments."""
        tasks = {branch.task for branch in branches if branch.task is not None}
        for branch in branches:
            self._loop.call_later(_PARTIAL_S, branch.enough.set)
        for branch in branches:
            if not branch.sampling and branch.task is not None:
                branch.task.cancel()
        while tasks:
            await self._core.abort([branch.name for branch in branches])
            _, tasks = await asyncio.wait(tasks, timeout=_STOP_S)
        for branch in branches:
            # Still running: its task was cancelled before its end.
            if self._running.pop(branch.request.key, None) is not None:
                self._ended.append(self._unstarted(branch.request))

    def _pop_ended(self, key: Key) -> Sampled | None:
        for at, sampled in enumerate(self._ended):
            if sampled.key == key:
                return self._ended.pop(at)
        return None

    def _recall(self, branches: list[_Branch]) -> None:
        """Stop branches. Those without a token are not aborted: they wait, ahead of the others."""
        self._loop.run_until_complete(self._stop(branches))
        empty = {s.key for s in self._ended if not len(s.tokens_T)}
        self._ended = [s for s in self._ended if s.key not in empty]
        requests = [branch.request for branch in branches]
        recalled = {request.key: request for request in requests if request.key in empty}
        self._waiting = recalled | self._waiting

    def _salt(self) -> str:
        """Return the name of the KV that a request may share.

        It is of this policy, since the last time that all prefixes were dropped.
        """
        return f"{self._policy.digest.hex()}/{self._generation}"
