"""Helpers of the tests of tree policies: policies to draw from, drivers, trees made by hand."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from banyan.draws import key
from banyan.plugins import Branch, GrowthView
from banyan.policy import PolicyVersion
from banyan.segment import Finish, Kind, Sampling, Segment
from banyan.signals import Signals
from banyan.tree import Tree
from methods.generate.rose import METRICS
from methods.generate.treepo import endings
from services.rollout.engines.port import Request, Sampled
from services.rollout.engines.scripted.engine import ScriptedEngine
from services.rollout.growth.grower import Grower
from services.rollout.growth.spec import GrowSpec

EPTREE = "methods.generate.eptree:EPTree"
TREE_GRPO = "methods.generate.tree_grpo:TreeGRPO"
ROSE = "methods.generate.rose:Rose"
EAGER = "methods.generate.treepo.eager:TreePOEager"

POLICIES = {
    EPTREE: st.fixed_dictionaries(
        {
            "chains": st.integers(1, 4),
            "forks": st.integers(1, 3),
            "rounds": st.integers(0, 2),
            "continuations": st.integers(1, 3),
            "masked": st.sampled_from([["answer"], ["ab"], []]),
        }
    ),
    TREE_GRPO: st.fixed_dictionaries(
        {"rounds": st.integers(0, 3), "expansions": st.integers(1, 3), "node": st.integers(1, 5)}
    ),
    EAGER: st.fixed_dictionaries(
        {
            "segment": st.integers(1, 5),
            "max_depth": st.integers(1, 6),
            "width": st.integers(1, 11),
            "divisor": st.integers(1, 4),
            "fallback": st.sampled_from(endings.CUTS),
            "finished": st.sampled_from(endings.FINISHED),
        }
    ),
    ROSE: st.fixed_dictionaries(
        {
            "width": st.integers(1, 9),
            "epsilon": st.sampled_from([0.0, 0.3, 1.0]),
            "metric": st.sampled_from(METRICS),
            "revisit": st.booleans(),
        }
    ),
}


def any_policy() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Draw a policy with settings."""
    return st.sampled_from(sorted(POLICIES)).flatmap(
        lambda name: st.tuples(st.just(name), POLICIES[name])
    )


class Signalling:
    """Scripted engine whose tokens have arbitrary signals that are a function of their prefix."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._prefixes: dict[Any, Request] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request) -> None:
        self._prefixes[request.key] = request
        self._engine.submit(request)

    def step(self) -> list[Sampled]:
        return [self._signalled(item) for item in self._engine.step()]

    def load(self, policy: PolicyVersion, weights: None) -> list[Sampled]:
        return [self._signalled(item) for item in self._engine.load(policy, weights)]

    def _signalled(self, one: Sampled) -> Sampled:
        request = self._prefixes[one.key]
        if not request.signals:
            return one
        before = [int(t) for t in request.prefix_P]
        rows = [_row(before + one.tokens_T[:t].tolist()) for t in range(len(one.tokens_T))]
        top = np.array([r[0] for r in rows]).reshape(-1, 2)
        semantic = np.array([r[1] for r in rows])
        wanted = request.signals
        actual = (
            (np.zeros(top.shape, np.int32), top)
            if wanted.top
            else (np.zeros((0, 0)), np.zeros((0, 0)))
        )
        return replace(one, signals=Signals(*actual, semantic if wanted.semantic else np.zeros(0)))


def _row(prefix: list[int]) -> tuple[list[float], float]:
    """Return log-probs of two tokens, and F; few values, so that there are ties."""
    u = key(0, "row", *prefix)
    p = (1 + u % 4) / 8
    return [float(np.log(p)), float(np.log(1 - p))], (u // 4 % 5 - 2) / 4


def grow_anyhow(
    given: GrowSpec, engine: ScriptedEngine, rng: random.Random, cuts: float = 0.0
) -> Grower:
    """Grow a tree with late requests in any order, and cuts by a new policy now and then."""
    grower = Grower(given, Tree(given.tree_id), engine.tokenizer, "test")
    step, waiting, loads = grower.start(), [], 0
    for _ in range(10_000):
        if step.grown is not None:
            assert set(step.grown) == set(grower.leaves)
            return grower
        waiting += step.requests
        rng.shuffle(waiting)
        for _ in range(rng.randint(0 if engine.busy else 1, len(waiting)) if waiting else 0):
            engine.submit(waiting.pop())
        if cuts and rng.random() < cuts:
            loads += 1
            step = grower.ended(engine.load(PolicyVersion(1, loads, b"q%d" % loads), None))
        else:
            step = grower.ended(engine.step())
    raise AssertionError("the tree is never grown")


class Hand:
    """Tree made by hand: a prompt of two tokens, and runs of log-probs at branches."""

    def __init__(self, max_path_tokens: int = 10, sampling: Sampling | None = None) -> None:
        self.tree = Tree(b"tree")
        self.root = Segment(b"tree", b"", 0, 0, Kind.PROMPT, np.array([1, 2]), text="go")
        self.tree.add(self.root)
        self.most, self.sampling = max_path_tokens, sampling or Sampling()

    def put(
        self,
        branch: Branch,
        logprobs: Sequence[float],
        finish: Finish = Finish.STOP,
        text: str | None = None,
        signals: Signals | None = None,
    ) -> Segment:
        """Add a segment as if it had been sampled."""
        segment = Segment(
            b"tree",
            branch.parent,
            branch.fork,
            branch.ordinal,
            Kind.POLICY,
            np.arange(len(logprobs)),
            np.array(logprobs, np.float32),
            sampling=replace(self.sampling, max_new_tokens=self.most),
            finish=finish,
            text="x" * len(logprobs) if text is None else text,
            signals=signals or Signals(),
        )
        self.tree.add(segment)
        return segment

    def start(self, ordinal: int = 0) -> Branch:
        """Return a branch of the prompt."""
        return Branch(self.root.id, len(self.root), ordinal)

    def view(self, **more: Any) -> GrowthView:
        """Return the view for a plan."""
        return GrowthView(self.tree, 7, self.most, sampling=self.sampling, **more)


def asked(plan: Any, tree: Tree) -> Mapping[Branch, int]:
    """Return missing branches of a plan, with the tokens that each may have."""
    return {
        e.branch: e.sampling.max_new_tokens
        for e in plan.expansions
        if tree.at(e.branch.parent, e.branch.fork, e.branch.ordinal) is None
    }
