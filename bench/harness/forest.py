"""Growth of groups of trees on the torch engine without a bus or a store, all at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from banyan.draws import key
from banyan.plugins import Scored, TreePolicy
from banyan.segment import Kind, Sampling
from banyan.tree import Leaf, Tree
from methods.filter.number import Number, given
from services.rollout.growth.grower import Grower
from services.rollout.growth.scores import LeafScore
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import GrowthStep

MODEL = "SmolLM2-135M-Instruct"
_SCORER = Number(take="last")


@dataclass(frozen=True)
class Prompt:
    """Row, and the tokens that the model reads of it."""

    row: Mapping[str, Any]
    messages: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Answer:
    """Leaf: the policy's tokens on its path, its number, and whether that is right."""

    tokens: tuple[int, ...]
    value: Decimal | None
    right: bool


@dataclass(frozen=True)
class Grown:
    """Group: its answers, tree by tree, and the tokens sampled for them, discarded ones
    included."""

    answers: list[Answer]
    sampled: int


@dataclass(frozen=True)
class Job:
    """Tree policy, made anew for each tree, and the trees of a group."""

    policy: Callable[[], TreePolicy]
    trees: int
    seed: int


class Forest:
    """One model, and a fresh engine for each set of trees."""

    def __init__(self, longest: int) -> None:
        import torch

        from services.chassis import models
        from services.rollout.engines.torch_engine import loading
        from services.rollout.engines.torch_engine.forward import Forward

        folder = models.resolve(MODEL, tokenizer=True)
        self._forward = Forward(loading.load_model(folder, torch.bfloat16, torch.device("cpu")))
        self._tokenizer = loading.ChatTokenizer(folder, self._forward.model)
        self._longest = longest

    def prompts(
        self, dataset: str, config: Mapping[str, Any], system: str, seed: int, count: int
    ) -> list[Prompt]:
        """Return rows of a generator of reasoning-gym."""
        from banyan.recipe import Task
        from services.gateway import tasks

        task = Task(
            name="reasoning-gym",
            dataset=dataset,
            config=dict(config),
            size=max(count, 2),
            seed=seed,
            system=system,
        )
        return [
            Prompt(row, tuple(tasks.messages(row, task)))
            for row in tasks.load(task, Path())[:count]
        ]

    def grow(self, jobs: Sequence[Job], prompts: Sequence[Prompt]) -> list[list[Grown]]:
        """Grow a group of each prompt for each job, all at once, so that batches are full."""
        from banyan.policy import PolicyVersion
        from services.rollout.engines.torch_engine.engine import TorchEngine
        from services.rollout.engines.torch_engine.kv.kv_budget import Limits

        engine = TorchEngine(
            self._forward, self._tokenizer, Limits(max_branches=128), PolicyVersion(0, 0, b"bench")
        )
        places = [
            (j, p, t)
            for j, job in enumerate(jobs)
            for p in range(len(prompts))
            for t in range(job.trees)
        ]
        growers = {
            (tree_id := _id(*place)): Grower(
                self._spec(jobs, prompts, place), Tree(tree_id), self._tokenizer, "bench"
            )
            for place in places
        }
        _run(engine, growers, {_id(j, p, t): prompts[p].row for j, p, t in places})
        return [
            [
                _grown(prompt, [growers[_id(j, p, t)] for t in range(job.trees)])
                for p, prompt in enumerate(prompts)
            ]
            for j, job in enumerate(jobs)
        ]

    def _spec(
        self, jobs: Sequence[Job], prompts: Sequence[Prompt], place: tuple[int, int, int]
    ) -> GrowSpec:
        j, p, t = place
        drawn = key(jobs[j].seed, "bench", p, t)
        sampling = Sampling(1.0, 1.0, 0, self._longest, (), drawn)
        policy = jobs[j].policy()
        return GrowSpec(
            tree_id=_id(*place),
            run_id="bench",
            seed=drawn,
            messages=prompts[p].messages,
            tree_policy=policy,
            max_path_tokens=self._longest,
            sampling=sampling,
            order=(p, t),
        )


def _id(job: int, prompt: int, tree: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in (job, prompt, tree, 0))


def _grown(prompt: Prompt, growers: Sequence[Grower]) -> Grown:
    """Return leaves in order of their places, not of their ends: the first to end are the
    shortest."""
    answers = [
        _answer(grower, leaf, prompt.row)
        for grower in growers
        for leaf in sorted(grower.leaves, key=partial(_place, grower.tree))
    ]
    segments = [
        s for grower in growers for s in grower.tree.segments.values() if s.kind is Kind.POLICY
    ]
    return Grown(answers, sum(len(s) for s in segments))


def _place(tree: Tree, leaf: Leaf) -> tuple[tuple[int, int], ...]:
    path: list[tuple[int, int]] = [(leaf.end, 0)]
    segment = tree.segments[leaf.segment]
    while segment.parent:
        path.append((segment.fork, segment.ordinal))
        segment = tree.segments[segment.parent]
    return tuple(reversed(path))


def _answer(grower: Grower, leaf: Leaf, row: Mapping[str, Any]) -> Answer:
    assert grower.tree.root is not None
    tokens = grower.tree.prefix_tokens(leaf.segment, leaf.end)[len(grower.tree.root) :]
    text = grower.completion(leaf)
    return Answer(tuple(tokens.tolist()), given(text, "last"), _score(text, row) == 1.0)


def _score(text: str, row: Mapping[str, Any]) -> float:
    outcome = _SCORER.score(text, row)
    return outcome.value if isinstance(outcome, Scored) else 0.0


def _run(
    engine: Any, growers: Mapping[bytes, Grower], rows: Mapping[bytes, Mapping[str, Any]]
) -> None:
    """Step all trees until each is grown."""
    steps = {tree_id: grower.start() for tree_id, grower in growers.items()}
    open_trees = set(growers)
    while open_trees:
        for tree_id, step in steps.items():
            if _carry_out(engine, growers[tree_id], step):
                open_trees.discard(tree_id)
        ended: dict[bytes, list[Any]] = {}
        for sampled in engine.step() if engine.busy else ():
            ended.setdefault(sampled.key[0], []).append(sampled)
        steps = {
            tree_id: growers[tree_id].ended(ones)
            for tree_id, ones in ended.items()
            if tree_id in open_trees
        }
        steps |= {
            t: growers[t].scored(_scores(growers[t], rows[t]))
            for t in open_trees - set(steps)
            if growers[t].waits
        }
        if open_trees and not steps and not engine.busy:
            raise RuntimeError(f"{len(open_trees)} trees neither grow nor end")


def _carry_out(engine: Any, grower: Grower, step: GrowthStep) -> bool:
    """Carry out a plan; return whether the tree is grown after it."""
    for request in step.requests:
        engine.submit(request)
    cut = [part for branch in step.aborts if (part := engine.abort(grower.key(branch))) is not None]
    return _carry_out(engine, grower, grower.ended(cut)) if cut else step.grown is not None


def _scores(grower: Grower, row: Mapping[str, Any]) -> list[LeafScore]:
    return [
        LeafScore(leaf, "number", _score(grower.completion(leaf), row)) for leaf in grower.leaves
    ]
