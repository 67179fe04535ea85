"""A store and a log in memory, behind the gateway's ports, with a learner and nodes."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from banyan.errors import NotFound, Refused
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.domain.ports import Learners, Log, Store

EVAL, TRAIN = tree_pb2.TREE_PURPOSE_EVAL, tree_pb2.TREE_PURPOSE_TRAIN


class MemoryStore(Store, Learners):
    """Runs, trees and policies in dictionaries, and the learner that writes checkpoints.

    `refuse_epoch` makes every write fail as a newer gateway would.
    """

    def __init__(self) -> None:
        self.runs: dict[str, runs.Run] = {}
        self.saved: list[str] = []
        self.requests: dict[str, str] = {}
        self.trees: dict[bytes, tree_pb2.TreeSpec] = {}
        self.states: dict[bytes, str] = {}
        self.policies: list[runs.StoredPolicy] = []
        self.metrics: dict[str, float] = {}  # the same at every step
        self.members: dict[str, runs.Member] = {}
        self.tokens: dict[bytes, str] = {}
        self.desired: dict[str, dict[str, int]] = {}
        self.moves: list[tuple[str, str]] = []
        self.given_up: list[runs.ReportProcessRequest] = []
        self.live_ms = 0
        self.batches = 0
        self.scores: dict[str, int] = {}  # by label; default: one a leaf
        self.reasons: list[str] = []
        self.epoch = 0
        self.refuse_epoch = False
        self.allocations: dict[int, runs.GroupAllocation] = {}
        self.outcomes: list[list[runs.GroupOutcome]] = []  # by batch
        # Rewards and lengths, by the row's JSON.
        self.answers: dict[str, tuple[list[float], list[int]]] = {}
        self.page = 3  # allocations in an answer

    # -- the port --

    async def checkpoint(self, run_id: str) -> str:
        self.saved.append(run_id)
        return "/folder/checkpoints/1"

    async def take_epoch(self, gateway_id: str) -> int:
        self.epoch += 1
        return self.epoch

    def _write(self) -> None:
        if self.refuse_epoch:
            raise Refused("a newer gateway has taken over", reason="STALE_EPOCH")

    async def put_run(self, run: runs.Run, request_id: str, tokenizer: bytes = b"") -> runs.Run:
        self._write()
        known = self.requests.get(request_id)
        if known is None:
            if run.run_id in self.runs:
                raise Refused(f"run {run.run_id} exists", reason="RUN_EXISTS")
            self.requests[request_id] = known = run.run_id
            self.runs[known] = run
        return self.runs[known]

    async def read_run(self, run_id: str, with_progress: bool = False) -> runs.ReadRunResponse:
        matching = [run for key, run in self.runs.items() if key.startswith(run_id)]
        if len(matching) != 1:
            raise NotFound(f"there is no run {run_id}")
        answer = runs.ReadRunResponse(run=matching[0], given_up=self.given_up, live_ms=self.live_ms)
        if with_progress:
            answer.progress.CopyFrom(await self.read_progress(matching[0].run_id))
        return answer

    async def read_runs(self, live_only: bool) -> Sequence[runs.Run]:
        over = (S.RUN_STATE_SUCCEEDED, S.RUN_STATE_FAILED, S.RUN_STATE_CANCELLED)
        return [run for run in self.runs.values() if not (live_only and run.state in over)]

    async def move_run(self, run_id: str, old: int, new: int, cause: str) -> runs.Run:
        self._write()
        run = self.runs[run_id]
        if run.state != old:
            raise Refused(f"run {run_id} is not in state {old}", reason="WRONG_STATE")
        if new in (S.RUN_STATE_PAUSED, S.RUN_STATE_FAILED) and old != S.RUN_STATE_FAILED:
            run.resume_state = old  # type: ignore[assignment]
        run.state, run.cause = new, cause
        self.moves.append((S.Name(new).removeprefix("RUN_STATE_"), cause))
        return run

    async def read_progress(self, run_id: str) -> runs.ReadProgressResponse:
        answer = runs.ReadProgressResponse(batches=self.batches, groups=self._groups())
        if self.policies:
            answer.step = self.policies[-1].published.policy.step
        ended = sum(
            t.purpose == TRAIN and self.states[t.tree_id] in ("closed", "consumed")
            for t in self.trees.values()
        )
        answer.samples.scored = self.scores.get("", ended)
        answer.samples.leaves = self.scores.get("leaves", ended)
        for label in dict.fromkeys(t.label for t in self.trees.values() if t.purpose == EVAL):
            ids = [t.tree_id for t in self.trees.values() if t.label == label]
            done = sum(1 for i in ids if self.states[i] != "open")
            scored = self.scores.get(label, done)
            answer.evals.add(label=label, groups=len(ids), done=done, scored=scored)
        return answer

    def _groups(self) -> runs.GroupCounts:
        groups: dict[int, list[str]] = {}
        for tree in self.trees.values():
            if tree.purpose == TRAIN:
                groups.setdefault(tree.group_ordinal, []).append(self.states[tree.tree_id])
        sizes = {t.group_ordinal: t.group_size for t in self.trees.values() if t.purpose == TRAIN}
        whole = {o: s for o, s in groups.items() if len(s) == sizes[o]}
        counts = runs.GroupCounts(opened=next(i for i in range(len(whole) + 1) if i not in whole))
        for ordinal, states in groups.items():
            kind = "open" if "open" in states or len(states) < sizes[ordinal] else states[0]
            setattr(counts, kind, getattr(counts, kind) + 1)
        return counts

    async def put_allocations(
        self, run_id: str, allocations: Sequence[runs.GroupAllocation]
    ) -> Sequence[runs.GroupAllocation]:
        self._write()
        return [self.allocations.setdefault(a.ordinal, a) for a in allocations]

    async def read_allocations(self, run_id: str, first: int) -> Sequence[runs.GroupAllocation]:
        return [self.allocations[o] for o in sorted(self.allocations) if o >= first][: self.page]

    async def read_outcomes(
        self, run_id: str, first: int, before: int, solved_chars: int = 0, right: float = 0.5
    ) -> runs.ReadOutcomesResponse:
        assert first < before <= self.batches
        return runs.ReadOutcomesResponse(groups=self.outcomes[first], next_batch=first + 1)

    async def set_desired(self, run_id: str, processes: Mapping[str, int]) -> None:
        self._write()
        self.desired[run_id] = dict(processes)

    async def read_desired(self) -> Sequence[runs.DesiredProcess]:
        return [
            runs.DesiredProcess(run_id=r, service=s, count=n)
            for r, p in self.desired.items()
            for s, n in p.items()
        ]

    async def read_policies(
        self, run_id: str, after: int = 0, newest: int = 0
    ) -> Sequence[runs.StoredPolicy]:
        numbered = [
            runs.StoredPolicy(published=p.published, number=number)
            for number, p in enumerate(self.policies, 1)
        ]
        return [p for p in numbered if p.number > after][-newest:]

    async def read_members(self, run_id: str) -> Sequence[runs.Member]:
        return list(self.members.values())

    async def put_member(self, member: runs.Member) -> None:
        self.members[member.node_id] = member

    async def put_token(self, token_hash: bytes, run_id: str, valid_s: int) -> None:
        self.tokens[token_hash] = run_id

    async def read_token(self, token_hash: bytes) -> str:
        if token_hash not in self.tokens:
            raise NotFound("no such token")
        return self.tokens[token_hash]

    async def last_training_tree(self, run_id: str) -> tree_pb2.TreeSpec | None:
        trees = [t for t in self.trees.values() if t.purpose == TRAIN]
        return trees[-1] if trees else None

    async def troubles(self, run_id: str, label: str) -> Iterable[str]:
        return self.reasons

    # -- the log, nodes and the learner --

    def ingest(self, opened: events_pb2.TreeOpened) -> None:
        if opened.spec.tree_id not in self.trees:
            self.trees[opened.spec.tree_id] = opened.spec
            self.states[opened.spec.tree_id] = "open"

    def publish(self, step: int) -> None:
        policy = tree_pb2.PolicyRef(learner_epoch=1, step=step, digest=bytes([step]) * 32)
        published = events_pb2.PolicyPublished(
            run_id="r", policy=policy, metrics=self.metrics if step else {}
        )
        self.policies.append(runs.StoredPolicy(published=published))

    def finish(self, to: str = "closed", purpose: int = 0) -> None:
        for tree in self.trees.values():
            if self.states[tree.tree_id] == "open" and purpose in (0, tree.purpose):
                self.states[tree.tree_id] = to

    def train(self, groups_per_batch: int) -> bool:
        """Consume a batch and publish its policy, if enough groups are closed."""
        closed: dict[int, list[tree_pb2.TreeSpec]] = {}
        for tree in self.trees.values():
            if tree.purpose == TRAIN and self.states[tree.tree_id] == "closed":
                closed.setdefault(tree.group_ordinal, []).append(tree)
        if not self.policies or len(closed) < groups_per_batch:
            return False
        taken = sorted(closed)[:groups_per_batch]
        for tree in (tree for ordinal in taken for tree in closed[ordinal]):
            self.states[tree.tree_id] = "consumed"
        self.outcomes.append(
            [self._outcome(ordinal, closed[ordinal][0].row_json) for ordinal in taken]
        )
        self.batches += 1
        self.publish(self.batches)
        return True

    def _outcome(self, ordinal: int, row_json: str) -> runs.GroupOutcome:
        rewards, lengths = self.answers.get(row_json, ([], []))
        return runs.GroupOutcome(
            ordinal=ordinal, batch=self.batches, rewards=rewards, lengths=lengths
        )


class MemoryLog(Log):
    """A log that delivers TreesOpened to a store; `lose` drops everything, `hold` keeps it back."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.lose, self.hold = store, False, False
        self.messages = 0
        self.sent: list[events_pb2.TreeOpened] = []
        self.kept: list[events_pb2.TreeOpened] = []

    async def publish(
        self,
        subject: str,
        message: Any,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        await asyncio.sleep(0)
        trees = events_pb2.TreesOpened.FromString(message.SerializeToString()).trees
        self.messages += 1
        self.sent += trees
        if self.hold:
            self.kept += trees
        elif not self.lose:
            for tree in trees:
                self.store.ingest(tree)
        return self.messages

    async def triggers(self, run_id: str) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield None
