"""Metrics of scorers and parts, by hand; their names are bounded, and every logger takes them."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from banyan.loggers import LoggedRun
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from services.learner.data import score_metrics
from services.learner.loggers.mlflow import MLflow

SCORED, UNSCORABLE = tree_pb2.SCORE_STATE_SCORED, tree_pb2.SCORE_STATE_UNSCORABLE
Parts = Mapping[str, float]


def tree(*scores: tuple[int, str, float | None, Parts], dropped: bool = False) -> tree_pb2.Tree:
    """Return a tree with two leaves and these scores: end, scorer, value, parts."""
    state = tree_pb2.TREE_STATE_DROPPED if dropped else tree_pb2.TREE_STATE_CONSUMED
    message = tree_pb2.Tree(state=state, leaves=[{"segment": b"s", "end": n} for n in (1, 2)])
    for end, scorer, value, parts in scores:
        known = tree_pb2.Score(
            state=UNSCORABLE if value is None else SCORED, value=value or 0.0, parts=parts
        )
        place = tree_pb2.LeafRef(segment=b"s", end=end)
        message.scores.append(tree_pb2.ScoredLeaf(leaf=place, scorer=scorer, score=known))
    return message


def test_means_and_deviations_are_by_hand() -> None:
    first = tree(
        (1, "number", 1.0, {"format": 1.0}),
        (2, "number", 0.0, {"format": 1.0, "raised": 1.0}),
        (1, "length", -0.5, {}),
        (2, "length", None, {}),
        (7, "number", 9.0, {"format": 9.0}),  # a place inside a path
    )
    second = tree((1, "number", 0.5, {"format": 0.0}), (2, "number", 0.5, {"format": 0.0}))
    measured = score_metrics.of_trees([first, second, tree((1, "number", 5.0, {}), dropped=True)])
    assert measured == pytest.approx(
        {
            "score/number": 0.5,
            "score_std/number": (0.5 / 4) ** 0.5,  # (½² + ½² + 0 + 0) / 4
            "part/number/format": 0.5,
            "part_std/number/format": 0.5,
            "part/number/raised": 1.0,
            "part_std/number/raised": 0.0,
            "part_share/number/raised": 0.25,
            "score/length": -0.5,
            "score_std/length": 0.0,
        }
    )
    assert score_metrics.of_trees([]) == {}


def many() -> dict[str, float]:
    """Return metrics of more parts than are measured, of unusual names."""
    parts = {f"no. {i} of {'x' * 99}?": float(i) for i in range(50)}
    parts |= {"a b": 1.0, "a/b": 2.0, "": 3.0, "\N{SNOWMAN}": 4.0}
    scores = [(1, f"my.module:{name}", 1.0, parts) for name in ("first", "second")]
    return score_metrics.of_trees([tree(*scores)])


def test_names_are_few_and_none_lies_below_another() -> None:
    measured = many()
    assert len(measured) <= 1 + 2 * (2 + score_metrics.MOST_PARTS)
    name_of = re.compile(
        r"(score(_std)?/[\w.-]{1,64}|part(_std|_share)?(/[\w.-]{1,64}){2})", re.ASCII
    )
    assert measured.pop("parts_left_out") == 2 * 53 - score_metrics.MOST_PARTS
    assert all(name_of.fullmatch(name) for name in measured)
    assert measured["part/my.module_first/a_b"] == 1.0, "the first of names that are alike"
    assert not [a for a in measured for b in measured if a.startswith(f"{b}/")]


def test_scores_of_a_leaf_have_the_names_of_the_metrics() -> None:
    stored = tree(
        (1, "my.module:first", 1.0, {"a b": 0.5, "a/b": 2.0}),
        (1, "length", None, {}),
        (2, "length", -0.5, {}),
    )
    first, second, unknown = (Leaf(b"s", end) for end in (1, 2, 3))
    assert score_metrics.of_leaves(stored, [first, second, unknown]) == {
        first: {"score/my.module_first": 1.0, "part/my.module_first/a_b": 0.5},
        second: {"score/length": -0.5},
        unknown: {},
    }


@pytest.mark.slow
def test_mlflow_takes_them(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    logger = MLflow()
    logger.begin(LoggedRun(run_id="r-1", recipe={}, folder=tmp_path, last=-1))
    logger.log(1, many())  # it raises for a name that it does not take
    logger.close()
