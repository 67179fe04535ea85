"""Credit of turns through a store equals a reference written from the papers, tree by tree."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan import registry
from banyan.v1 import tree_pb2
from services.learner.data import from_store
from services.learner.data.prepare import Lesson, build_lesson
from services.treestore.queries import trees
from services.treestore.storage.database import Database
from services.treestore.storage.settings import Settings
from tests.learner.credit import plain_groups as plain
from tests.learner.credit import step_reference as reference
from tests.learner.credit import stored_groups, tree_reference
from tests.learner.credit.plain_groups import POLICY, End, PlainTree
from tests.learner.credit.step_reference import Row
from tests.treestore.forge import Forge, World

GAMMA = 0.95
WEIGHTS = ((1.0, 1.0), (3.0, 1.0), (1.0, -0.5), (0.0, 1.0), (1.0, 0.0))
WAYS: dict[str, tuple[str, dict[str, Any], Callable[..., None]]] = {}
for scale in ("mean", "mean_std"):
    for rows in ("steps", "episodes"):
        settings: dict[str, Any] = {"scale": scale, "rows": rows, "step_weight": 0.7}
        WAYS[f"gigpo {scale} {rows}"] = ("gigpo", settings, partial(reference.gigpo, **settings))
    for history, power, term in ((0, 1.0, False), (2, 1.0, True), (3, 0.5, False)):
        settings = {"scale": scale, "history": history, "power": power, "episode_term": term}
        way = f"hgpo {scale} {history} {power} {term}"
        WAYS[way] = ("hgpo", settings, partial(reference.hgpo, **settings))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite'}").open()
    yield World(database, Forge(), Settings()).start()
    database.close()


def stored(
    world: World, ordinal: int, group: Sequence[PlainTree], weights: tuple[float, float]
) -> tuple[list[tree_pb2.Tree], str]:
    more: dict[str, Any] = {"scorers": ["environment", "other"], "scorer_weights": weights}
    if any(tree.inside for tree in group):  # these and the environment's scorer are never together
        more = {"scorers": ["other"]}
    specs = [world.forge.spec(ordinal, i, len(group), **more) for i in range(len(group))]
    for spec, tree in zip(specs, group, strict=True):
        stored_groups.store(world, spec, tree)
    found = world.database.query(lambda c: trees.read(c, [s.tree_id for s in specs]))
    assert [tree.state for tree in found] == [tree_pb2.TREE_STATE_CLOSED] * len(group)
    return found, specs[0].group_id


def learnt(
    found: list[tree_pb2.Tree], group_id: str, name: str, settings: dict[str, Any]
) -> Lesson:
    groups = from_store.by_group(found, [group_id])
    estimator = registry.estimator(name, settings)
    return build_lesson(groups, estimator, lambda _tree, _leaf: False, b"now", 10_000)


def said(lesson: Lesson) -> dict[tuple[int, ...], list[float]]:
    """Return the advantages of each trained path, by the tokens that it trains on."""
    found = {}
    for sequence in lesson.sequences:
        paths = zip(sequence.index_P_T, sequence.mask_P_T, sequence.advantage_P_T, strict=True)
        for index_T, mask_T, advantage_T in paths:
            tokens = tuple(sequence.token_E[index_T[mask_T]].tolist())
            assert tokens not in found and not advantage_T[~mask_T].any()
            found[tokens] = advantage_T[mask_T].tolist()
    return found


def expected(
    group: Sequence[PlainTree], weights: tuple[float, float], credit: Callable[..., None]
) -> dict[tuple[int, ...], list[float]]:
    """Return the same from the reference: what the policy said, and nothing of what was given."""
    cut: dict[End, list[Row]] = {}
    for tree in group:
        cut |= reference.rows_of(tree, weights, GAMMA)
    if cut:
        credit(list(cut.values()))
    values: dict[tuple[int, int], float] = {}
    for tree in group:
        values |= reference.shared([cut[leaf] for leaf in tree.leaves if leaf in cut])
    return of_paths(cut, values)


def of_paths(
    cut: Iterable[End], values: Mapping[tuple[int, int], float]
) -> dict[tuple[int, ...], list[float]]:
    """Return the values of what the policy said on each path, by its tokens."""
    result = {}
    for leaf in cut:
        own = [(piece, at) for piece, at in leaf.tokens if piece.kind == POLICY]
        tokens = tuple(piece.tokens[at] for piece, at in own)
        result[tokens] = [values[id(piece), at] for piece, at in own]
    return result


def compare(world: World, groups: Iterable[list[PlainTree]], weights: tuple[float, float]) -> int:
    """Compare the credit of groups in all ways; return how many of these teach something.

    Groups differ in size; some have too few scores, or nothing that differs, to teach.
    """
    taught = 0
    for ordinal, group in enumerate(groups):
        found, group_id = stored(world, ordinal, group, weights)
        for way, (name, settings, credit) in WAYS.items():
            wanted = expected(group, weights, credit)
            given = said(learnt(found, group_id, name, settings))
            if not given:
                assert len(wanted) < 2 or not np.concatenate(list(wanted.values())).any(), way
                continue
            taught += 1
            assert given.keys() == wanted.keys(), way
            for tokens, values in given.items():
                np.testing.assert_allclose(
                    values, wanted[tokens], rtol=1e-5, atol=1e-6, err_msg=f"{way} {ordinal}"
                )
    return taught


@pytest.mark.parametrize("seed", range(1, 6))
def test_credit_of_turns_is_that_of_the_papers(world: World, seed: int) -> None:
    assert compare(world, plain.groups(seed, 2), WEIGHTS[seed % len(WEIGHTS)])


@pytest.mark.parametrize("seed", range(2))
def test_credit_of_places_with_scores_of_their_own(world: World, seed: int) -> None:
    assert compare(world, plain.groups(seed, 3, inside=0.1), (0.0, 1.0))


@pytest.mark.parametrize(("name", "turns"), [("portool", True), ("rose", False)])
def test_credit_by_values_of_steps(world: World, name: str, turns: bool) -> None:
    credit, taught = getattr(tree_reference, name), 0
    for ordinal, group in enumerate(plain.groups(7, 4)):
        found, group_id = stored(world, ordinal, group, WEIGHTS[ordinal])
        cut: dict[End, list[Row]] = {}
        for tree in group:
            cut |= reference.rows_of(tree, WEIGHTS[ordinal], GAMMA, turns)
        given = said(learnt(found, group_id, name, {}))
        wanted = of_paths(cut, credit(cut)) if given else {}
        assert given.keys() == wanted.keys()
        for tokens, values in given.items():
            np.testing.assert_allclose(values, wanted[tokens], rtol=1e-5, atol=1e-6)
        taught += bool(given)
    assert taught > 1


def test_the_groups_have_ends_of_every_kind() -> None:
    leaves = [leaf for group in plain.groups(1, 20) for tree in group for leaf in tree.leaves]
    assert {leaf.why for leaf in leaves} == set(plain.ENDS)
    shared = [piece for leaf in leaves for piece, _ in leaf.piece.path(leaf.end)]
    answers = [id(piece) for piece in shared if piece.kind == plain.TOOL]
    assert len(answers) > len(set(answers)), "branches share answers"
