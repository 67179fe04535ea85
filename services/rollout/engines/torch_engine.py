"""The torch engine: continuous batching over the segments of many trees, each prefix prefilled once (DESIGN 7).

A step decodes one token for every running branch; then it admits what waits, as far as slots and KV memory go, and samples
the first token of each admitted branch from its prefix's last logits, which all branches of that prefix share. A prefix
longer than `prefill_tokens` takes a chunk a step. What does not fit waits. A policy's KV never outlives it.
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
from services.chassis.head import Head
from services.rollout.engines import loading
from services.rollout.engines.admission import Group, batches, next_wave
from services.rollout.engines.asking import extras, scored
from services.rollout.engines.choosing import Chosen, choose
from services.rollout.engines.drawn import Drawn
from services.rollout.engines.filling import Filling
from services.rollout.engines.forward import Forward
from services.rollout.engines.memory import Limits, Memory
from services.rollout.engines.port import EngineStats, Key, Policy, Request, Sampled, Tokenizer
from services.rollout.engines.refusals import check
from services.rollout.engines.rows import Row, unstarted
from services.rollout.engines.sampler import draw
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
        self._filling: list[Filling] = []
        self._held = False
        self._head: Head | None = None
        self._sampled = self._prefilled = self._cached = self._steps = 0

    # -- what callers say --

    def submit(self, request: Request) -> None:
        """Queues a segment. Raises InvalidInput if it could never fit."""
        check(request, self._memory, self._forward.vocabulary)
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stops a segment, running or waiting."""
        if (request := self._waiting.pop(key, None) or self._unfilled(key)) is not None:
            return unstarted(request, self._policy)
        for r, row in enumerate(self._rows):
            if row.request.key == key:
                self._remove([r])
                return row.ended(Finish.ABORTED, self._policy)
        return None

    def _unfilled(self, key: Key) -> Request | None:
        """Takes a request out of those whose prefix is being computed."""
        found = next((request for f in self._filling if (request := f.drop(key)) is not None), None)
        self._filling = [f for f in self._filling if f.group.requests]
        return found

    def load(self, policy: Policy, weights: Path | None) -> list[Sampled]:
        """Takes new weights; running branches end as ABORTED, and no KV of the old policy is left.

        The same weights under a new number (a step that changed nothing) cut nothing.
        """
        if policy.digest == self._policy.digest and policy.digest:
            self._policy, self._held = policy, False
            return []
        if weights is not None:
            self._head = loading.take(self._forward.model, weights)
        cut = [row.ended(Finish.ABORTED, self._policy) for row in self._rows]
        again = {request.key: request for f in self._filling for request in f.group.requests}
        self._waiting = again | self._waiting
        self._filling.clear()
        self._rows.clear()
        self._memory.store.clear()
        self._policy, self._held = policy, False
        return cut

    def hold(self, held: bool) -> None:
        """Whether nothing more is admitted, and no long prefix computed further."""
        self._held = held

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
            waiting=len(self._waiting) + sum(len(f.group.requests) for f in self._filling),
            kv_tokens=self._memory.tokens + sum(f.spare.tokens for f in self._filling),
        )

    @property
    def busy(self) -> bool:
        return bool(self._rows or ((self._waiting or self._filling) and not self._held))

    def step(self) -> list[Sampled]:
        """Admits, then decodes one token for each branch that was running before."""
        self._steps += 1
        decoded, begun = len(self._rows), time.perf_counter()
        ended = self._decode() if self._rows else []
        ended += self._fill()
        chosen = self._admissible()
        waiting, admitted = list(chosen.requests), len(chosen.requests)
        while waiting:
            wave, waiting = next_wave(waiting, self._memory.store, chosen.shared)
            for group in wave:
                group.match.pin(1)
            for batch in batches(wave, self._limits.prefill_tokens):
                ended += self._start(batch)
            waiting = self._postponed(waiting)
        took = 1000 * (time.perf_counter() - begun)
        log.debug("step %d: %d decoded, %d admitted, %d ended, %.0f ms", self._steps, decoded, admitted, len(ended), took)
        return ended

    # -- admission --

    def _fill(self) -> list[Sampled]:
        """One more chunk of the first long prefix."""
        if not self._filling or self._held:
            return []
        filling = self._filling[0]
        before = filling.done
        logits = filling.go_on(self._forward, self._limits.prefill_tokens)
        self._prefilled += filling.done - before
        if logits is None:
            return []
        self._filling.pop(0)
        return self._begin([filling.group], filling.spare, logits)

    def _postponed(self, requests: list[Request]) -> list[Request]:
        """Those that need not wait for a prefix that is being computed; the others go back to the front of the queue."""
        late = [r for r in requests if any(f.shares(r.prefix_P) for f in self._filling)]
        self._waiting = {r.key: r for r in late} | self._waiting
        return [r for r in requests if r.key not in self._waiting]

    def _admissible(self) -> Chosen:
        """Takes from the queue what fits now, and makes room for it."""
        if self._held:
            return Chosen()
        held = [f.group for f in self._filling]
        taken = len(self._rows) + sum(len(group.requests) for group in held)
        free = self._limits.max_branches - taken
        if taken and free < min(len(self._waiting), self._limits.max_branches // _FEW):
            return Chosen()
        queue = [r for r in self._waiting.values() if not any(f.shares(r.prefix_P) for f in self._filling)]
        if self._limits.deterministic:
            queue.sort(key=lambda r: r.order)
        needs = [row.need for row in self._rows]
        chosen = choose(queue[:free], needs, held, self._memory, self._forward.by_level)
        for request in chosen.requests:
            del self._waiting[request.key]
        if chosen.requests:
            live = max((row.written - row.above for row in self._rows), default=0)
            self._memory.make_room(taken + len(chosen.requests), chosen.need, len(self._rows), live, chosen.pinned)
        return chosen

    def _start(self, groups: list[Group]) -> list[Sampled]:
        """Prefills a batch of prefixes and begins their branches; a long prefix begins to be filled."""
        if groups[0].fresh > self._limits.prefill_tokens:
            self._filling += [Filling.of(group, self._forward) for group in groups]
            return []
        prefixes = [g.prefix_P for g in groups]
        spare = Slots(self._forward.kv, len(groups), max(len(p) for p in prefixes) + 1)
        for g, group in enumerate(groups):
            spare.load(g, group.match)
            group.match.pin(-1)
        self._prefilled += sum(g.fresh for g in groups)
        return self._begin(groups, spare, self._forward.prefill(spare, prefixes, [g.match.length for g in groups]))

    def _begin(self, groups: list[Group], spare: Slots, logits: torch.Tensor) -> list[Sampled]:
        """Puts the branches of prefixes that are in spare slots into slots of their own; samples their first tokens."""
        first, rows = len(self._rows), [row for group in groups for row in group.rows()]
        for g, group in enumerate(groups):
            length, count = len(group.prefix_P), len(group.requests)
            mine = rows[first - len(self._rows) :][:count]
            self._place(group, spare, g, first, mine)
            self._cached += group.match.length + (count - 1) * length
            first += count
        self._rows += rows
        return self._sample(logits, groups, rows, len(self._rows) - len(rows))

    def _place(self, group: Group, spare: Slots, g: int, first: int, rows: Sequence[Row]) -> None:
        """Keeps a prefix that is in slot g of `spare`, and lets its rows share it or have a copy each."""
        length = len(group.prefix_P)
        keys, values = spare.keys[:, g, :, :length], spare.values[:, g, :, :length]
        if not group.shared:
            self._memory.slots.spread(spare, g, first, len(rows), length)
            self._memory.keep(group.prefix_P, keys, values)
            return
        trunk = self._memory.hold(group.prefix_P, keys, values)
        for row in rows:
            row.trunk = trunk
            trunk.pin(1)

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
        drawn = draw(shared, samplings, which, self._uniforms(rows), extras(rows, self._forward.embeddings))
        drawn = scored(drawn, rows, self._head, self._forward.states, [sources[d] for d in which])
        return self._take(drawn, rows, first)

    def _decode(self) -> list[Sampled]:
        rows = self._rows
        spare = self._limits.rows(len(rows)) - len(rows)
        tokens = [row.tokens[-1] for row in rows] + [0] * spare
        positions = [row.written for row in rows] + [0] * spare
        trunks = [row.trunk for row in rows] + [None] * spare
        own = max(row.written - row.above for row in rows)
        width = min(self._limits.width(own + 1), self._memory.slots.capacity)
        logits = self._forward.decode(self._memory.slots, tokens, positions, trunks, width)
        for row in rows:
            row.written += 1
        samplings = [row.request.sampling for row in rows]
        drawn = draw(
            logits[: len(rows)], samplings, range(len(rows)), self._uniforms(rows), extras(rows, self._forward.embeddings)
        )
        return self._take(scored(drawn, rows, self._head, self._forward.states, range(len(rows))), rows, 0)

    @staticmethod
    def _uniforms(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
        keys = np.array([row.request.draw_key for row in rows], np.uint64)
        return uniforms(keys, np.array([row.position for row in rows], np.uint64))

    def _take(self, drawn: Drawn, rows: Sequence[Row], first: int) -> list[Sampled]:
        """Appends a draw to its rows, which begin at slot `first`; what has ended leaves its slot."""
        ended: list[Sampled] = []
        gone: list[int] = []
        for r, row in enumerate(rows):
            self._sampled += row.forced is None
            self._prefilled += row.forced is not None
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
        slots, own = self._memory.slots, row.written - row.above
        self._memory.keep(path, slots.keys[:, slot, :, :own], slots.values[:, slot, :, :own], row.above)

    def _remove(self, gone: Sequence[int]) -> None:
        """Frees slots; the last row moves into the gap, so that rows stay dense."""
        for slot in sorted(gone, reverse=True):
            if (trunk := self._rows[slot].trunk) is not None:
                trunk.pin(-1)
            last = self._rows.pop()
            if slot < len(self._rows):
                self._memory.slots.move(len(self._rows), slot, last.written - last.above)
                self._rows[slot] = last
