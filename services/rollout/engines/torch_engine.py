"""The torch engine: continuous batching over the segments of many trees, each prefix prefilled once (DESIGN 7).

A step admits what waits, as far as slots and KV memory go, and samples the first token of each admitted branch from its
prefix's last logits, which all branches of that prefix share; then it decodes one token for every running branch. What
does not fit waits. A policy's KV never outlives it.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from banyan.draws import uniforms
from banyan.errors import InvalidInput
from banyan.segment import Finish, Floats, IntTokens
from services.rollout.engines import loading
from services.rollout.engines.admission import Group, batches, next_wave
from services.rollout.engines.forward import Forward
from services.rollout.engines.memory import Limits, Memory
from services.rollout.engines.port import NO_ROOM, EngineStats, Key, Policy, Request, Sampled, Tokenizer
from services.rollout.engines.rows import Row, unstarted
from services.rollout.engines.sampler import Drawn, draw
from services.rollout.engines.slots import Slots

log = logging.getLogger(__name__)

_FEW = 8  # a prefill pass costs about half a decode step: it waits until an eighth of the slots is free


class TorchEngine:
    """Samples with a Hugging Face causal LM."""

    def __init__(self, forward: Forward, tokenizer: Tokenizer, limits: Limits, policy: Policy) -> None:
        self.tokenizer = tokenizer
        self._forward, self._limits, self._policy = forward, limits, policy
        self._memory = Memory(forward.kv, limits)
        self._waiting: dict[Key, Request] = {}
        self._rows: list[Row] = []
        self._sampled = self._prefilled = self._cached = self._steps = 0

    # -- what callers say --

    def submit(self, request: Request) -> None:
        """Queues a segment. Raises InvalidInput if it could never fit."""
        need, most = self._need(request), self._limits.kv_tokens
        if not len(request.prefix_P) or request.sampling.max_new_tokens < 1:
            raise InvalidInput("a request needs a prefix of at least one token and room for at least one new one")
        if 0 < self._limits.context < need:  # no node has another model, so there is no reason that only this one knows
            prefix, new = len(request.prefix_P), request.sampling.max_new_tokens
            raise InvalidInput(
                f"a path of {need} tokens ({prefix} of prompt and trunk, {new} new) is longer than the model's context of"
                f" {self._limits.context} (max_position_embeddings); shorten the prompt or generate.max_new_tokens"
            )
        if not self._memory.fits(1, need, len(request.prefix_P)):
            message = f"a path of {need} tokens cannot fit into resources.kv_tokens={most}; raise it"
            raise InvalidInput(message, reason=NO_ROOM)
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stops a segment, running or waiting."""
        if (request := self._waiting.pop(key, None)) is not None:
            return unstarted(request, self._policy)
        for r, row in enumerate(self._rows):
            if row.request.key == key:
                self._remove([r])
                return row.ended(Finish.ABORTED, self._policy)
        return None

    def load(self, policy: Policy, weights: Path | None) -> list[Sampled]:
        """Takes new weights; running branches end as ABORTED, and no KV of the old policy is left.

        The same weights under a new number (a step that changed nothing) cut nothing.
        """
        if policy.digest == self._policy.digest and policy.digest:
            self._policy = policy
            return []
        if weights is not None:
            loading.take(self._forward.model, weights)
        cut = [row.ended(Finish.ABORTED, self._policy) for row in self._rows]
        self._rows.clear()
        self._memory.store.clear()
        self._policy = policy
        return cut

    def forget(self) -> None:
        """Drops all kept prefixes."""
        self._memory.store.clear()

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:]."""
        if not 1 <= first < len(tokens_T):
            raise InvalidInput(f"first={first} must lie in 1..{len(tokens_T) - 1}: a first token has no log-prob")
        return self._forward.logprobs(tokens_T, first, temperature)

    def stats(self) -> EngineStats:
        """Counts."""
        return EngineStats(
            sampled_tokens=self._sampled,
            prefilled_tokens=self._prefilled,
            cached_tokens=self._cached,
            steps=self._steps,
            running=len(self._rows),
            waiting=len(self._waiting),
            kv_tokens=self._memory.tokens,
        )

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting)

    def step(self) -> list[Sampled]:
        """Admits, then decodes one token for each branch that was running before."""
        self._steps += 1
        decoded, begun = len(self._rows), time.perf_counter()
        ended = self._decode() if self._rows else []
        waiting = self._admissible()
        admitted = len(waiting)
        while waiting:
            wave, waiting = next_wave(waiting, self._memory.store)
            for group in wave:
                group.match.pin(1)
            for batch in batches(wave, self._limits.prefill_tokens):
                ended += self._start(batch)
        took = 1000 * (time.perf_counter() - begun)
        log.debug("step %d: %d decoded, %d admitted, %d ended, %.0f ms", self._steps, decoded, admitted, len(ended), took)
        return ended

    # -- admission --

    @staticmethod
    def _need(request: Request) -> int:
        return len(request.prefix_P) + request.sampling.max_new_tokens

    def _admissible(self) -> list[Request]:
        """Takes from the queue what fits now, and makes room for it."""
        free = self._limits.max_branches - len(self._rows)
        if self._rows and free < min(len(self._waiting), self._limits.max_branches // _FEW):
            return []
        queue = list(self._waiting.values())
        if self._limits.deterministic:
            queue.sort(key=lambda r: r.order)
        chosen: list[Request] = []
        prefixes: dict[bytes, int] = {}
        need = max((row.need for row in self._rows), default=0)
        for request in queue:
            rows = len(self._rows) + len(chosen) + 1
            prefixes[request.prefix_P.tobytes()] = len(request.prefix_P)
            wider = max(need, self._need(request))
            if rows > self._limits.max_branches or not self._memory.fits(rows, wider, sum(prefixes.values())):
                break
            need = wider
            chosen.append(request)
        for request in chosen:
            del self._waiting[request.key]
        if chosen:
            live = max((row.written for row in self._rows), default=0)
            self._memory.make_room(len(self._rows) + len(chosen), need, len(self._rows), live)
        return chosen

    def _start(self, groups: list[Group]) -> list[Sampled]:
        """Prefills a batch of prefixes, puts their branches into slots and samples their first tokens."""
        prefixes = [g.prefix_P for g in groups]
        spare = Slots(self._forward.kv, len(groups), max(len(p) for p in prefixes) + 1)
        for g, group in enumerate(groups):
            spare.load(g, group.match)
            group.match.pin(-1)
        logits = self._forward.prefill(spare, prefixes, [g.match.length for g in groups])
        first, rows = len(self._rows), [row for group in groups for row in group.rows()]
        for g, group in enumerate(groups):
            length, count = len(group.prefix_P), len(group.requests)
            self._memory.slots.spread(spare, g, first, count, length)
            self._memory.keep(group.prefix_P, spare.keys[:, g, :, :length], spare.values[:, g, :, :length])
            self._prefilled += length - group.match.length
            self._cached += group.match.length + (count - 1) * length
            first += count
        self._rows += rows
        return self._sample(logits, groups, rows, len(self._rows) - len(rows))

    # -- sampling --

    def _sample(self, logits: torch.Tensor, groups: Sequence[Group], rows: list[Row], first: int) -> list[Sampled]:
        """First tokens: branches with the same prefix and temperature share one distribution."""
        sources: list[int] = []
        samplings = []
        which: list[int] = []
        for g, group in enumerate(groups):
            for i, request in enumerate(group.requests):
                if i == 0 or request.sampling != group.requests[i - 1].sampling:
                    sources.append(g)
                    samplings.append(request.sampling)
                which.append(len(sources) - 1)
        shared = logits if sources == list(range(len(groups))) else logits[sources]
        return self._take(draw(shared, samplings, which, self._uniforms(rows)), rows, first)

    def _decode(self) -> list[Sampled]:
        rows = self._rows
        spare = self._limits.rows(len(rows)) - len(rows)
        tokens = [row.tokens[-1] for row in rows] + [0] * spare
        positions = [row.written for row in rows] + [0] * spare
        width = min(self._limits.width(max(positions) + 1), self._memory.slots.capacity)
        logits = self._forward.decode(self._memory.slots, tokens, positions, width)
        for row in rows:
            row.written += 1
        drawn = draw(logits[: len(rows)], [row.request.sampling for row in rows], range(len(rows)), self._uniforms(rows))
        return self._take(drawn, rows, 0)

    @staticmethod
    def _uniforms(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
        keys = np.array([row.request.draw_key for row in rows], np.uint64)
        return uniforms(keys, np.array([len(row.tokens) for row in rows], np.uint64))

    def _take(self, drawn: Drawn, rows: Sequence[Row], first: int) -> list[Sampled]:
        """Appends a draw to its rows, which begin at slot `first`; what has ended leaves its slot."""
        self._sampled += len(rows)
        ended: list[Sampled] = []
        gone: list[int] = []
        for r, row in enumerate(rows):
            row.take(drawn, r)
            finish = row.finish(self.tokenizer)
            if finish is not None:
                ended.append(row.ended(finish, self._policy))
                gone.append(first + r)
                if finish is Finish.BOUNDARY and row.request.keep:
                    self._keep(first + r, row)
        self._remove(gone)
        return ended

    def _keep(self, slot: int, row: Row) -> None:
        path = np.concatenate((row.request.prefix_P, np.array(row.tokens, np.int32)))[: row.written]
        slots = self._memory.slots
        self._memory.keep(path, slots.keys[:, slot, :, : row.written], slots.values[:, slot, :, : row.written])

    def _remove(self, gone: Sequence[int]) -> None:
        """Frees slots; the last row moves into the gap, so that rows stay dense."""
        for slot in sorted(gone, reverse=True):
            last = self._rows.pop()
            if slot < len(self._rows):
                self._memory.slots.move(len(self._rows), slot, last.written)
                self._rows[slot] = last
