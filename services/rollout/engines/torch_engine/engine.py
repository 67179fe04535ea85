"""The torch engine: continuous batching over the segments of many trees.

Each prefix is prefilled once. A step decodes one token for every running branch; then it admits
waiting requests, as far as KV memory allows, and samples the first token of each admitted branch
from its prefix's last logits, which all branches of that prefix share. A prefix longer than
`prefill_tokens` takes a chunk a step. Requests that do not fit wait. A policy's KV never outlives
it.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Floats, IntTokens
from services.chassis.weights.value_head import ValueHead
from services.rollout.engines.port import EngineStats, Key, Request, Sampled, Tokenizer
from services.rollout.engines.torch_engine import loading
from services.rollout.engines.torch_engine.extras import (
    draw_uniforms,
    extras,
    with_head_scores,
)
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget, Limits
from services.rollout.engines.torch_engine.kv.kv_slots import KvSlots
from services.rollout.engines.torch_engine.sampler import draw
from services.rollout.engines.torch_engine.samples import Samples
from services.rollout.engines.torch_engine.scheduling.admission import (
    Group,
    batches,
    first_draws,
    next_wave,
)
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch, unstarted
from services.rollout.engines.torch_engine.scheduling.chunked_prefill import (
    ChunkedPrefill,
    ChunkedPrefills,
)
from services.rollout.engines.torch_engine.scheduling.limits import check
from services.rollout.engines.torch_engine.scheduling.running import Running
from services.rollout.engines.torch_engine.scheduling.scheduler import (
    Admitted,
    choose,
    claimed_pages,
)

log = logging.getLogger(__name__)

# A prefill pass costs about half a decode step: it waits until this part of max_branches is free.
_ADMISSION_PART = 8


class TorchEngine:
    """Engine that samples with a Hugging Face causal LM."""

    def __init__(
        self, forward: Forward, tokenizer: Tokenizer, limits: Limits, policy: PolicyVersion
    ) -> None:
        self.tokenizer = tokenizer
        self._forward, self._limits, self._policy = forward, limits, policy
        self._kv_budget = KvBudget(forward.kv, limits)
        self._waiting: dict[Key, Request] = {}
        self._running = Running(self._kv_budget)
        self._passed: Mapping[Key, int] = {}
        self._prefills = ChunkedPrefills(self._kv_budget)
        self._on_hold = False
        self._head: ValueHead | None = None
        self._sampled = self._prefilled = self._cached = self._steps = 0

    # -- the port --

    def submit(self, request: Request) -> None:
        """Queue a segment. Raise InvalidInput if it could never fit."""
        check(request, self._kv_budget, self._forward.vocabulary)
        self._waiting[request.key] = request

    def abort(self, key: Key) -> Sampled | None:
        """Stop a segment, running or waiting, and return it; None if it is not here."""
        request = self._waiting.pop(key, None) or self._prefills.drop_request(key)
        if request is not None:
            paused = self._running.paused.pop(key, None)
            if paused is not None:
                return paused.ended(Finish.ABORTED, self._policy)
            return unstarted(request, self._policy)
        branch = self._running.find(key)
        if branch is None:
            return None
        self._running.remove([branch])
        return branch.ended(Finish.ABORTED, self._policy)

    def load(self, policy: PolicyVersion, weights: Path | None) -> list[Sampled]:
        """Load new weights, abort running branches, and drop all KV of the old policy.

        The same weights under a new number (a step that changed nothing) abort nothing.
        """
        if policy.digest == self._policy.digest and policy.digest:
            self._policy, self._on_hold = policy, False
            return []
        if weights is not None:
            self._head = loading.load_weights(self._forward.model, weights)
        self._unfill(self._prefills.prefills)
        branches = self._running.clear()
        aborted = [branch.ended(Finish.ABORTED, self._policy) for branch in branches]
        for segment in aborted:
            self._waiting.pop(segment.key, None)  # the remainder of a paused branch
        self._kv_budget.prefix_cache.clear()
        self._policy, self._on_hold = policy, False
        return aborted

    def hold(self, on: bool) -> None:
        """Stop or resume admission and chunked prefill; paused branches still go on."""
        self._on_hold = on

    def forget(self) -> None:
        """Drop all cached prefixes."""
        self._kv_budget.prefix_cache.clear()

    def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Return the log-probs of tokens[first:]."""
        if not 1 <= first < len(tokens_T):
            raise InvalidInput(
                f"first={first} must lie in 1..{len(tokens_T) - 1}: a first token has no log-prob"
            )
        return self._forward.logprobs(tokens_T, first, temperature)

    def stats(self) -> EngineStats:
        """Return the counts. Paused branches count as running."""
        branches = len(self._running.branches)
        running = branches + len(self._running.paused)
        return EngineStats(
            sampled_tokens=self._sampled,
            prefilled_tokens=self._prefilled,
            cached_tokens=self._cached,
            steps=self._steps,
            running=running,
            # The remainders of paused branches are among the waiting and prefilling requests.
            waiting=len(self._waiting) + branches + self._prefills.requests - running,
            kv_tokens=self._kv_budget.tokens,
        )

    @property
    def busy(self) -> bool:
        running = self._running.branches or self._running.paused
        return bool(running or ((self._waiting or self._prefills.prefills) and not self._on_hold))

    def step(self) -> list[Sampled]:
        """Decode one token for each running branch, then admit; return the ended segments."""
        self._steps += 1
        decoded, started = len(self._running.branches), time.perf_counter()
        ended = self._decode() if self._running.branches else []
        ended += self._advance_prefill()
        admitted = self._admissible()
        waiting = list(admitted.requests)
        while waiting:
            wave, waiting = next_wave(waiting, self._kv_budget.prefix_cache, admitted.shared)
            for group in wave:
                group.match.pin(1)
            for batch in batches(wave, self._limits.prefill_tokens):
                ended += self._start(batch)
            waiting = self._postponed(waiting)
        self._kv_budget.trim()
        log.debug(
            "step %d: %d decoded, %d admitted, %d ended, %.0f ms",
            self._steps,
            decoded,
            len(admitted.requests),
            len(ended),
            1000 * (time.perf_counter() - started),
        )
        return ended

    # -- admission --

    def _advance_prefill(self) -> list[Sampled]:
        """Compute one more chunk of the first long prefix, and begin its branches at the end."""
        allowed = (p for p in self._prefills.prefills if self._may_begin(p.group.requests))
        prefill = next(allowed, None)
        if prefill is None:
            return []
        before = prefill.done
        logits = prefill.advance(self._forward, self._limits.prefill_tokens)
        self._prefilled += prefill.done - before
        if logits is None:
            return []
        self._prefills.drop([prefill])
        group = prefill.group
        copies = 0 if group.shared else len(group.requests)
        self._provide(copies * self._kv_budget.pages.of(len(group.prefix_P)), keep=0)
        return self._begin([group], prefill.slots, logits)

    def _may_begin(self, requests: Sequence[Request]) -> bool:
        """Return whether any of the requests may begin; on hold, only paused ones may."""
        return not self._on_hold or any(r.key in self._running.paused for r in requests)

    def _unfill(self, prefills: Sequence[ChunkedPrefill]) -> None:
        """Drop chunked prefills; their requests return to the front of the queue."""
        requests = {r.key: r for prefill in prefills for r in prefill.group.requests}
        self._waiting = requests | self._waiting
        self._prefills.drop(prefills)

    def _postponed(self, requests: list[Request]) -> list[Request]:
        """Return the requests that await no chunked prefill; requeue the others at the front."""
        late = {r.key: r for r in requests if self._prefills.share(r.prefix_P)}
        self._waiting = late | self._waiting
        return [r for r in requests if r.key not in self._waiting]

    def _admissible(self) -> Admitted:
        """Remove from the queue the requests that fit now, and make memory for them."""
        branches, max_branches = self._running.branches, self._limits.max_branches
        running = len(branches) + self._prefills.requests
        free = max_branches - running
        if running and free < min(len(self._waiting), max_branches // _ADMISSION_PART):
            return Admitted()
        waiting = [r for r in self._waiting.values() if self._may_begin([r])]
        queue = [r for r in waiting if not self._prefills.share(r.prefix_P)]
        if self._limits.deterministic:
            queue.sort(key=lambda r: (r.key not in self._running.paused, r.order))
        admitted = choose(
            queue,
            free=free,
            claimed=claimed_pages(branches, self._prefills.groups, self._kv_budget),
            kv_budget=self._kv_budget,
            by_level=self._forward.by_level,
            passed=self._passed,
        )
        self._passed = admitted.passed
        for request in admitted.requests:
            del self._waiting[request.key]
        if admitted.requests:
            self._kv_budget.settle(admitted.claimed, admitted.pinned, self._running.tables)
        return admitted

    def _start(self, groups: list[Group]) -> list[Sampled]:
        """Prefill a batch of prefixes and begin its branches, or begin a chunked prefill."""
        if groups[0].fresh > self._limits.prefill_tokens:
            for group in groups:
                self._prefills.add(group)
            prefilling = self._prefills.groups
            claimed = claimed_pages(self._running.branches, prefilling, self._kv_budget)
            self._kv_budget.settle(claimed, self._kv_budget.pinned, self._running.tables)
            return []
        prefixes = [group.prefix_P for group in groups]
        capacity = max(len(prefix) for prefix in prefixes) + 1
        slots = KvSlots(self._forward.kv, len(groups), capacity)
        for g, group in enumerate(groups):
            slots.load(g, group.match)
            group.match.pin(-1)
        self._prefilled += sum(group.fresh for group in groups)
        cached = [group.match.length for group in groups]
        return self._begin(groups, slots, self._forward.prefill(slots, prefixes, cached))

    def _begin(self, groups: list[Group], slots: KvSlots, logits: torch.Tensor) -> list[Sampled]:
        """Begin the branches of prefixes in slots, and sample their first tokens."""
        for group in groups:
            self._cached += group.match.length + (len(group.requests) - 1) * len(group.prefix_P)
        return self._sample_first(logits, groups, self._running.begin(groups, slots))

    def _provide(self, pages: int, *, keep: int) -> None:
        """Make pages free beside those of the next tokens.

        Where memory is short, pause branches, all but `keep`, then drop chunked prefills.
        """
        while True:
            pausable = len(self._running.branches) > keep
            anyway = not pausable and not self._prefills.prefills
            if self._running.provide(pages, anyway=anyway):
                return
            if pausable:
                rest = self._running.pause()
                self._waiting = {rest.key: rest} | self._waiting
            else:
                self._unfill(self._prefills.prefills[-1:])

    # -- sampling --

    def _sample_first(
        self, logits: torch.Tensor, groups: Sequence[Group], branches: list[RunningBranch]
    ) -> list[Sampled]:
        """Sample first tokens; branches with equal prefix and sampling share a distribution."""
        draws = first_draws(groups)
        if draws.group_D != list(range(len(groups))):
            logits = logits[draws.group_D]
        samples = draw(
            logits,
            draws.sampling_D,
            draws.distribution_R,
            draw_uniforms(branches),
            extras(branches, self._forward.embeddings),
        )
        state_R = [draws.group_D[d] for d in draws.distribution_R]
        return self._append(samples, branches, state_R)

    def _decode(self) -> list[Sampled]:
        self._provide(0, keep=1)
        self._running.grow()
        branches = self._running.branches
        # Padding comes first: rows are ordered by length, and padded rows are the shortest.
        padding = self._limits.rows(len(branches)) - len(branches)
        logits = self._forward.decode(
            self._kv_budget.pages,
            [0] * padding + [branch.tokens[-1] for branch in branches],
            [0] * padding + [branch.written for branch in branches],
            [None] * padding + [branch.trunk for branch in branches],
            [[0]] * padding + self._running.tables,
            self._limits.bucketing,
        )
        for branch in branches:
            branch.written += 1
        samples = draw(
            logits[padding:],
            [branch.request.sampling for branch in branches],
            range(len(branches)),
            draw_uniforms(branches),
            extras(branches, self._forward.embeddings),
        )
        return self._append(samples, branches, range(padding, padding + len(branches)))

    def _append(
        self, samples: Samples, branches: Sequence[RunningBranch], state_R: Sequence[int]
    ) -> list[Sampled]:
        """Append samples to their branches; remove the branches that have ended.

        state_R: the row of the last pass's states that each token was drawn from.
        """
        samples = with_head_scores(samples, branches, self._head, self._forward.states, state_R)
        segments: list[Sampled] = []
        ended: list[RunningBranch] = []
        for r, branch in enumerate(branches):
            self._sampled += branch.forced is None
            self._prefilled += branch.forced is not None
            branch.append(samples, r)
            finish = branch.finish(self.tokenizer)
            if finish is not None:
                segments.append(branch.ended(finish, self._policy))
                ended.append(branch)
                if branch.is_continued(finish, self.tokenizer):
                    keys, values = self._kv_budget.pages.read(branch.pages, branch.own)
                    path_P = branch.path[: branch.written]
                    self._kv_budget.keep(path_P, keys, values, branch.above)
        self._running.remove(ended)
        return segments
