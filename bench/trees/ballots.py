"""Votes over held-out rows in one process, counted by the scorers that count them in a verifier."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.plugins.filter import HEAD_VOTE, VOTE
from banyan.recipe import Recipe
from banyan.recipe_loader import votes
from banyan.tree import Leaf, Tree
from bench.trees.process import InProcess
from bench.trees.scoring import left_to_right
from services.gateway.runs.evaluation import Evaluation
from services.gateway.runs.opening import Opener
from services.gateway.tasks import dataset

RIGHT = 1.0


@dataclass(frozen=True)
class Outcome:
    """What votes over rows found, as shares of rows that are right.

    plain: by the winner where all answers count alike
    head: by the winner where the head weights them; NaN where a row has no such vote
    leaf: of a single answer, in the mean
    """

    plain: float
    head: float
    leaf: float


def held(process: InProcess, recipe: Recipe, rows: int) -> Outcome:
    """Hold the votes of a recipe over the first held-out rows, with a process's present policy."""
    counting = {
        part.name: registry.build("filter", part.name, part.settings)
        for part in votes.scorers(recipe)
    }
    step = process.policy.step
    opener = Opener("votes", recipe, dataset.read(recipe, Path()))
    wanted = Evaluation(f"step-{step}", "voted", step)
    specs = list(itertools.islice(opener.evaluation(wanted), rows))
    trees, _ = process.grow(specs)
    found = [
        row(process, tree, json.loads(spec.row_json), counting)
        for tree, spec in zip(trees, specs, strict=True)
    ]
    return Outcome(*(fmean(values) for values in zip(*found, strict=True)))


def row(
    process: InProcess, grown: ScoredTree, asked: Any, counting: dict[str, Any]
) -> tuple[float, float, float]:
    """Return whether the winners of both votes are right, and the share of leaves that are."""
    leaves = left_to_right(grown.tree, grown.leaves)
    texts = [_text(process, grown.tree, leaf) for leaf in leaves]
    right = [float((grown.rewards[leaf] or 0.0) >= RIGHT) for leaf in leaves]
    plain = _winner(counting[VOTE].score_group(texts, asked), right)
    head = float("nan")
    if HEAD_VOTE in counting:
        heads = [last(grown.tree, leaf) for leaf in leaves]
        head = _winner(counting[HEAD_VOTE].score_group(texts, asked, heads), right)
    return plain, head, fmean(right)


def _winner(scores: Any, right: list[float]) -> float:
    """Return whether the answer that won is right: its leaves are, all or none; NaN without one."""
    won = [value for score, value in zip(scores, right, strict=True) if score.value]
    return fmean(won) if won else float("nan")


def last(tree: Tree, leaf: Leaf) -> float | None:
    """Return the head's last score on the path to a leaf; None if the path has none."""
    for segment, tokens in reversed(tree.pieces(leaf.segment, leaf.end)):
        scores = segment.signals.head_T
        if 0 < tokens <= len(scores):
            return float(scores[tokens - 1])
    return None


def _text(process: InProcess, tree: Tree, leaf: Leaf) -> str:
    tokens_T = tree.prefix_tokens(leaf.segment, leaf.end)
    text: str = process.tokenizer.decode(tokens_T[tree.context_length(leaf.segment, leaf.end) :])
    return text
