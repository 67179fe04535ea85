"""Facts of a run's trees that a diagnosis reads, from stored messages. Pure."""

from collections.abc import Iterable

from banyan.doctor.tree_rules import GrownTree
from banyan.errors import BanyanError
from banyan.payoff.shape import Shape, shape_of
from banyan.payoff.tokens import tokens_of
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import leaves_from_wire, tree_from_wire

NEWEST = 64  # trees that are read: some steps of most recipes
WHOLE = (
    tree_pb2.TREE_STATE_SCORING,
    tree_pb2.TREE_STATE_CLOSED,
    tree_pb2.TREE_STATE_CONSUMED,
)


def newest_filter(run_id: str) -> ts.TreeFilter:
    """Return the filter of the newest whole training trees of a run."""
    return ts.TreeFilter(
        run_id=run_id, limit=NEWEST, states=WHOLE, purpose=tree_pb2.TREE_PURPOSE_TRAIN
    )


def judged_shape(recipe_json: str) -> Shape | None:
    """Return the shape of a stored recipe's trees; None if its tree policy is not judged by them.

    None, too, for a policy of the user's own, whose code a diagnosis does not run, and for a recipe
    of another version.
    """
    try:
        recipe = Recipe.model_validate_json(recipe_json, strict=False)
        shape = None if ":" in recipe.generate.policy else shape_of(recipe)
    except (BanyanError, ValueError):
        return None
    return shape if shape is not None and shape.judged else None


def steps_of(listed: Iterable[ts.TreeSummary]) -> dict[bytes, int]:
    """Return the policy step of each listed tree with leaves, by id."""
    return {summary.tree_id: summary.policy_step for summary in listed if summary.leaves}


def shared_share(samples: rs.SampleCounts) -> float:
    """Return the share of the answer tokens of all paths that are on another path, too."""
    return 1.0 - samples.unique_tokens / samples.path_tokens if samples.path_tokens else 0.0


def grown(message: tree_pb2.Tree, step: int) -> GrownTree:
    """Return the facts of a stored tree whose newest segment has this policy step."""
    tree, leaves = tree_from_wire(message), leaves_from_wire(message)
    return GrownTree(
        group=message.spec.group_id,
        step=step,
        lengths=tuple(tree.answer_length(leaf.segment, leaf.end) for leaf in leaves),
        tokens=tokens_of(tree, leaves),
    )
