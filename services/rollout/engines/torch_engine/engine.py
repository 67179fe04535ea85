"""The torch engine: continuous batching over the segments of many trees, each prefix prefilled once (DESIGN 7).

A step decodes one token for every running branch; then it admits what waits, as far as KV memory goes, and samples the first
token of each admitted branch from its prefix's last logits, which all branches of that prefix share. A prefix longer than
`prefill_tokens` takes a chunk a step. What does not fit waits. A policy's KV never outlives it.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from banyan.draws import uniforms
from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Floats, IntTokens
from services.chassis.weights.value_head import ValueHead
from services.rollout.engines.port import EngineStats, Key, Request, Sampled, Tokenizer
from services.rollout.engines.torch_engine import loading
from services.rollout.engines.torch_engine.extras import extras, scored
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits, Memory
from services.rollout.engines.torch_engine.kv.kv_slots import Slots
from services.rollout.engines.torch_engine.sampler import draw
from services.rollout.engines.torch_engine.samples import Samples
from services.rollout.engines.torch_engine.scheduling.admission import (
    Group,
    batches,
    next_wave,
    sources,
)
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch, unstarted
from services.rollout.engines.torch_engine.scheduling.chunked_prefill import Filling
from services.rollout.engines.torch_engine.scheduling.limits import check
from services.rollout.engines.torch_engine.scheduling.running import Running
from services.rollout.engines.torch_engine.scheduling.scheduler import Admitted, choose, claimed

log = logging.getLogger(__name__)

_FEW = 8  # a prefill pass costs about half a decode step: it waits until an eighth of max_branches is free


class TorchEngine:
    """Samples with a Hugging Face causal LM."""

    def __init__(
        self, forward: Forward, tokenizer: Tokenizer, limits: Limits, policy: PolicyVersion
    ) -> None:
        self.tokenizer = tokenizer
        self._forward, self._limits, self._policy = forward, limits, policy
        self._memory = Memory(forward.kv, limits)
        self._waiting: dict[Key, Request] = {}
        self._running = Running(self._memory)
        self._passed: Mapping[Key, int] = {}
        self._filling: list[Filling] = []
        self._held = False
        self._head: ValueHead | None = None
        self._sampled = self._prefilled = self._cached = self._steps = 0

    # -- what callers say --

    def submit(self, request: Request) -> None:
        """Queues a segment. Raises InvalidInput if it could never fit."""
        check(request, self._memory, self._forward.vocabulary)
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stops a segment, running or waiting."""
        if (request := self._waiting.pop(key, None) or self._unfilled(key)) is not None:
            paused = self._running.paused.pop(key, None)
            return (
                paused.ended(Finish.ABORTED, self._policy)
                if paused
                else unstarted(request, self._policy)
            )
        row = next((row for row in self._running.rows if row.request.key == key), None)
        if row is None:
            return None
        self._running.remove([row])
        return row.ended(Finish.ABORTED, self._policy)

    def _unfilled(self, key: Key) -> Request | None:
        """Takes a request out of those whose prefix is being computed."""
        found = next((request for f in self._filling if (request := f.drop(key)) is not None), None)
        self._filling = [f for f in self._filling if f.group.requests]
        return found

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """Takes new weights; running branches end as ABORTED, and no KV of the old policy is left.

        The same weights under a new number (a step that changed nothing) cut nothing.
        """
        if policy.digest == self._policy.digest and policy.digest:
            self._policy, self._held = policy, False
            return []
        if weights is not None:
            self._head = loading.take(self._forward.model, weights)
        self._unfill(self._filling)
        cut = [row.ended(Finish.ABORTED, self._policy) for row in self._running.cut()]
        for one in cut:
            self._waiting.pop(one.key, None)  # what was to be sampled still of one that was paused
        self._memory.store.clear()
        self._policy, self._held = policy, False
        return cut

    def hold(self, held: bool) -> None:
        """Whether nothing more is admitted, and no long prefix computed further; branches that are paused still go on."""
        self._held = held

    def forget(self) -> None:
        """Drops all kept prefixes."""
        self._memory.store.clear()

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Log-probs of tokens[first:]."""
        if not 1 <= first < len(tokens_T):
            raise InvalidInput(
                f"first={first} must lie in 1..{len(tokens_T) - 1}: a first token has no log-prob"
            )
        return self._forward.logprobs(tokens_T, first, temperature)

    def stats(self) -> EngineStats:
        """Counts. Paused branches count as running."""
        running = len(self._running.rows) + len(self._running.paused)
        filled = sum(len(f.group.requests) for f in self._filling)
        return EngineStats(
            sampled_tokens=self._sampled,
            prefilled_tokens=self._prefilled,
            cached_tokens=self._cached,
            steps=self._steps,
            running=running,
            waiting=len(self._waiting) + len(self._running.rows) + filled - running,
            kv_tokens=self._memory.tokens,
        )

    @property
    def busy(self) -> bool:
        running = self._running.rows or self._running.paused
        return bool(running or ((self._waiting or self._filling) and not self._held))

    def step(self) -> list[Sampled]:
        """Admits, then decodes one token for each branch that was running before."""
        self._steps += 1
        decoded, begun = len(self._running.rows), time.perf_counter()
        ended = self._decode() if self._running.rows else []
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
        self._memory.trim()
        took = 1000 * (time.perf_counter() - begun)
        log.debug(
            "step %d: %d decoded, %d admitted, %d ended, %.0f ms",
            self._steps,
            decoded,
            admitted,
            len(ended),
            took,
        )
        return ended

    # -- admission --

    def _fill(self) -> list[Sampled]:
        """One more chunk of the first long prefix."""
        filling = next((f for f in self._filling if self._may_begin(f.group.requests)), None)
        if filling is None:
            return []
        before = filling.done
        logits = filling.go_on(self._forward, self._limits.prefill_tokens)
        self._prefilled += filling.done - before
        if logits is None:
            return []
        self._filling.remove(filling)
        self._memory.taken(filling.spare)
        copies = 0 if filling.group.shared else len(filling.group.requests)
        self._provide(copies * self._memory.pages.of(len(filling.group.prefix_P)), 0)
        return self._begin([filling.group], filling.spare, logits)

    def _may_begin(self, requests: Sequence[Request]) -> bool:
        """Whether any of these may: while nothing is admitted, those that had begun and were paused."""
        return not self._held or any(r.key in self._running.paused for r in requests)

    def _unfill(self, fillings: Sequence[Filling]) -> None:
        """Gives up prefixes that are being computed; their requests go back to the front of the queue."""
        self._waiting = {r.key: r for f in fillings for r in f.group.requests} | self._waiting
        for filling in fillings:
            self._memory.taken(filling.spare)
        self._filling = [f for f in self._filling if f not in fillings]

    def _postponed(self, requests: list[Request]) -> list[Request]:
        """Those that need not wait for a prefix that is being computed; the others go back to the front of the queue."""
        late = [r for r in requests if any(f.shares(r.prefix_P) for f in self._filling)]
        self._waiting = {r.key: r for r in late} | self._waiting
        return [r for r in requests if r.key not in self._waiting]

    def _admissible(self) -> Admitted:
        """Takes from the queue what fits now, and makes room for it."""
        held, rows = [f.group for f in self._filling], self._running.rows
        running = len(rows) + sum(len(group.requests) for group in held)
        free = self._limits.max_branches - running
        if running and free < min(len(self._waiting), self._limits.max_branches // _FEW):
            return Admitted()
        waiting = [r for r in self._waiting.values() if self._may_begin([r])]
        queue = [r for r in waiting if not any(f.shares(r.prefix_P) for f in self._filling)]
        if self._limits.deterministic:
            queue.sort(key=lambda r: (r.key not in self._running.paused, r.order))
        taken = claimed(rows, held, self._memory)
        chosen = choose(queue, free, taken, self._memory, self._forward.by_level, self._passed)
        self._passed = chosen.passed
        for request in chosen.requests:
            del self._waiting[request.key]
        if chosen.requests:
            self._memory.settle(chosen.claimed, chosen.pinned, self._running.tables)
        return chosen

    def _start(self, groups: list[Group]) -> list[Sampled]:
        """Prefills a batch of prefixes and begins their branches; a long prefix begins to be filled."""
        if groups[0].fresh > self._limits.prefill_tokens:
            self._filling += [Filling.of(group, self._memory) for group in groups]
            taken = claimed(self._running.rows, [f.group for f in self._filling], self._memory)
            self._memory.settle(taken, self._memory.pinned, self._running.tables)
            return []
        prefixes = [g.prefix_P for g in groups]
        spare = Slots(self._forward.kv, len(groups), max(len(p) for p in prefixes) + 1)
        for g, group in enumerate(groups):
            spare.load(g, group.match)
            group.match.pin(-1)
        self._prefilled += sum(g.fresh for g in groups)
        return self._begin(
            groups, spare, self._forward.prefill(spare, prefixes, [g.match.length for g in groups])
        )

    def _begin(self, groups: list[Group], spare: Slots, logits: torch.Tensor) -> list[Sampled]:
        """Begins the branches of prefixes that are in spare slots: each has a copy in its pages, or all share the one that
        is kept. Samples their first tokens."""
        rows = [[self._running.begun(row) for row in group.rows()] for group in groups]
        for g, group in enumerate(groups):
            self._cached += group.match.length + (len(group.requests) - 1) * len(group.prefix_P)
            if group.shared:
                self._running.share(rows[g], group.prefix_P, spare.keys[:, g], spare.values[:, g])
        copies = sum(
            len(g.requests) * self._memory.pages.of(len(g.prefix_P)) for g in groups if not g.shared
        )
        self._running.provide(
            copies, anyway=True
        )  # there is room, but for what others that begin now still read
        for g, group in enumerate(groups):
            if not group.shared:
                self._running.copy(rows[g], group.prefix_P, spare.keys[:, g], spare.values[:, g])
            self._running.rows += rows[g]
        return self._sample(logits, groups, [row for some in rows for row in some])

    def _provide(self, pages: int, fewest: int) -> None:
        """Makes pages free beside those of the next tokens. For want of room, branches beyond the `fewest` are paused, and
        prefixes that are being computed given up."""
        while not self._running.provide(
            pages, anyway=len(self._running.rows) <= fewest and not self._filling
        ):
            if len(self._running.rows) > fewest:
                paused = self._running.pause()
                self._waiting = {paused.key: paused} | self._waiting
            else:
                self._unfill(self._filling[-1:])

    # -- sampling --

    def _sample(
        self, logits: torch.Tensor, groups: Sequence[Group], rows: list[RunningBranch]
    ) -> list[Sampled]:
        """First tokens: branches with the same prefix and temperature share one distribution."""
        of, samplings, which = sources(groups)
        shared = logits if of == list(range(len(groups))) else logits[of]
        drawn = draw(
            shared, samplings, which, self._uniforms(rows), extras(rows, self._forward.embeddings)
        )
        return self._take(
            scored(drawn, rows, self._head, self._forward.states, [of[d] for d in which]), rows
        )

    def _decode(self) -> list[Sampled]:
        self._provide(0, 1)
        self._running.grow()
        rows = self._running.rows
        spare = self._limits.rows(len(rows)) - len(rows)  # in front, where the shortest ones are
        tokens = [0] * spare + [row.tokens[-1] for row in rows]
        positions = [0] * spare + [row.written for row in rows]
        trunks, tables = (
            [None] * spare + [row.trunk for row in rows],
            [[0]] * spare + self._running.tables,
        )
        logits = self._forward.decode(
            self._memory.pages, tokens, positions, trunks, tables, self._limits.cuts
        )
        for row in rows:
            row.written += 1
        samplings = [row.request.sampling for row in rows]
        wanted = extras(rows, self._forward.embeddings)
        drawn = draw(logits[spare:], samplings, range(len(rows)), self._uniforms(rows), wanted)
        return self._take(
            scored(drawn, rows, self._head, self._forward.states, range(spare, spare + len(rows))),
            rows,
        )

    @staticmethod
    def _uniforms(rows: Sequence[RunningBranch]) -> npt.NDArray[np.float64]:
        keys = np.array([row.request.draw_key for row in rows], np.uint64)
        return uniforms(keys, np.array([row.position for row in rows], np.uint64))

    def _take(self, drawn: Samples, rows: Sequence[RunningBranch]) -> list[Sampled]:
        """Appends a draw to its rows; what has ended leaves its pages."""
        ended: list[Sampled] = []
        gone: list[RunningBranch] = []
        for r, row in enumerate(rows):
            self._sampled += row.forced is None
            self._prefilled += row.forced is not None
            row.take(drawn, r)
            finish = row.finish(self.tokenizer)
            if finish is not None:
                ended.append(row.ended(finish, self._policy))
                gone.append(row)
                if finish is Finish.BOUNDARY and row.request.keep:
                    self._memory.keep(
                        row.path[: row.written],
                        *self._memory.pages.read(row.pages, row.own),
                        row.above,
                    )
        self._running.remove(gone)
        return ended
