"""Over-provisioning (APRIL, arXiv 2509.18521) by gate and learner: closed form, carried groups."""

from collections import Counter

import numpy as np
import pytest

from banyan.policy import PolicyVersion
from banyan.segment import Finish, Kind
from banyan.tree import Tree
from services.gateway.runs.staleness_gate import Gate, GroupCounts
from services.learner.data.selection import Ready, assemble
from services.rollout.growth.grower import Grower
from tests.rollout.growing import ENDING, engine, spec


class Groups:
    """Concurrent groups of fixed lengths; a step trains in no time and cuts nothing short."""

    def __init__(self, gate: Gate, lengths: list[float]) -> None:
        self.gate, self.lengths = gate, lengths
        self.ends: dict[int, float] = {}
        self.begun: dict[int, float] = {}
        self.steps: dict[int, int] = {}  # group → step that trained on it
        self.policies: dict[int, int] = {}  # group → step at which it was begun
        self.left_over: Counter[int] = Counter()  # group → steps that left it over
        self.now, self.step, self.opened = 0.0, 0, 0

    def advance(self) -> float:
        """Go to the end of a step; return its duration."""
        begun = self.now
        counts = GroupCounts(self.step, self.step, open=len(self.ends), closed=0)
        for _ in range(self.gate.groups_to_open(counts, 1 << 30)):
            self.begun[self.opened], self.policies[self.opened] = self.now, self.step
            self.ends[self.opened] = self.now + self.lengths[self.opened]
            self.opened += 1
        self.now = sorted(self.ends.values())[self.gate.groups_per_batch - 1]
        closed = [Ready(str(o), o, (b"t",)) for o, end in self.ends.items() if end <= self.now]
        chosen = assemble(closed, None, self.gate.groups_per_batch, deterministic=False)
        assert chosen is not None
        for group in chosen:
            del self.ends[group.ordinal]
            self.steps[group.ordinal] = self.step
        self.left_over.update(self.ends.keys())
        self.step += 1
        return self.now - begun


def test_a_case_computed_by_hand() -> None:
    groups = Groups(Gate(2, 1, extra=2), [1, 2, 4, 10, *[100] * 9])
    assert groups.advance() == 2
    assert sorted(groups.ends) == [2, 3]
    assert [groups.now - groups.begun[o] for o in (2, 3)] == [2, 2]
    pair = Groups(Gate(2, 0), [1, 10])
    assert pair.advance() == 10 and (1 + 10) / (2 * pair.now) == pytest.approx(0.55)


def test_the_closed_form_for_memoryless_groups() -> None:
    draws = list(np.random.default_rng(0).exponential(1.0, 40_000))
    harmonic = np.cumsum(1 / np.arange(1, 65))
    april = Groups(Gate(32, 8, extra=32), draws)
    mean = np.mean([april.advance() for _ in range(1000)][10:])
    assert mean == pytest.approx(harmonic[63] - harmonic[31], rel=0.03)
    assert mean == pytest.approx(0.6854, rel=0.03)
    synchronous = np.mean([max(draws[32 * i : 32 * i + 32]) for i in range(1000)])
    assert synchronous == pytest.approx(harmonic[31], rel=0.03)
    assert synchronous / mean == pytest.approx(5.92, rel=0.05)


def test_every_group_is_trained_once_or_still_in_hand_and_the_oldest_go_first() -> None:
    draws = list(np.random.default_rng(1).exponential(1.0, 4000))
    groups = Groups(Gate(4, 3, extra=5), draws)
    for _ in range(200):
        groups.advance()
        assert len(groups.ends) <= 5
    assert sorted([*groups.steps, *groups.ends]) == list(range(groups.opened))
    assert len(groups.steps) == 200 * 4
    ages = {o: step - groups.policies[o] for o, step in groups.steps.items()}
    assert all(age <= groups.left_over[o] for o, age in ages.items())
    assert max(ages.values()) > 0


def test_a_resumed_sample_is_the_sum_of_its_parts_and_no_staler_than_it_was_resumed() -> None:
    tree_spec, scripted = spec("iid", {"width": 16}, 40), engine(ENDING)
    grower = Grower(tree_spec, Tree(tree_spec.tree_id), scripted.tokenizer, "n")
    step, turn = grower.start(), 0
    while step.grown is None:
        for request in step.requests:
            scripted.submit(request)
        turn += 1
        if turn % 3 == 0:  # a batch is full: its policy cuts the branches
            ended = scripted.load(PolicyVersion(1, turn // 3, b"p%d" % turn), None)
        else:
            ended = scripted.step()
        step = grower.ended(ended)
    sampled = [s for s in grower.tree if s.kind is Kind.POLICY]
    assert scripted.stats().sampled_tokens == sum(map(len, sampled)), "no token is sampled twice"
    resumed = 0
    for leaf in grower.leaves:
        parts = grower.tree.lineage(leaf.segment)[1:]
        cuts = sum(part.finish is Finish.ABORTED for part in parts)
        tokens = len(grower.tree.prefix_tokens(leaf.segment, leaf.end)) - len(grower.tree.root)
        assert tokens == sum(map(len, parts)) <= 40 and len(parts) == cuts + 1
        assert parts[-1].policy_step - parts[0].policy_step <= cuts
        resumed += cuts
    assert resumed > 4
