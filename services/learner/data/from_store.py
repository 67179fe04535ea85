"""From stored trees to the domain: scored trees in an order that no arrival can change, held-out rows refused. Pure."""

from collections.abc import Iterable, Sequence

from banyan import registry
from banyan.errors import Refused
from banyan.plugins import Observation
from banyan.reasons import Reason
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.generate_spec import GenerateSpec
from banyan.wire.segments import (
    facts_from_wire,
    leaves_from_wire,
    rewards_from_wire,
    tree_from_wire,
)
from services.learner.data.credit import ScoredTree
from services.learner.packing.head_observations import Observed


def scored_tree(message: tree_pb2.Tree) -> ScoredTree:
    """A stored tree. Leaves come as a depth-first walk meets them: floating-point sums must not depend on who answered
    first."""
    rewards = rewards_from_wire(message.scores, len(message.spec.scorers))
    return ScoredTree(
        tree_from_wire(message), leaves_from_wire(message), rewards, facts_from_wire(message)
    )


def refuse_untrainable(trees: Sequence[tree_pb2.Tree], held_out: frozenset[bytes]) -> None:
    """Raises Refused for a held-out row, or a tree that only measures."""
    for tree in trees:
        name = f"tree {tree.spec.tree_id.hex()[:12]} of group {tree.spec.group_id}"
        if tree.spec.row_digest in held_out:
            raise Refused(
                f"{name} belongs to held-out row {tree.spec.row_digest.hex()[:12]}; it is never trained on",
                Reason.HELD_OUT,
            )
        if tree.spec.purpose != tree_pb2.TREE_PURPOSE_TRAIN:
            raise Refused(
                f"{name} was opened to measure a policy, not to train one", Reason.NOT_FOR_TRAINING
            )


def observed(trees: Sequence[tree_pb2.Tree], scored: Iterable[ScoredTree]) -> Observed:
    """Where the tree policies that grew a batch's trees say that their head counts."""
    specs = {tree.spec.tree_id: tree.spec.generate_json for tree in trees}
    found: dict[Leaf, list[Observation]] = {}
    for one in scored:
        generate = GenerateSpec.from_json(specs[one.tree.tree_id])
        policy = registry.build("generate", generate.name, generate.settings)
        for observation in policy.observations(one.tree, one.leaves):
            found.setdefault(observation.leaf, []).append(observation)
    return found


def by_group(
    trees: Sequence[tree_pb2.Tree], group_ids: Sequence[str]
) -> list[tuple[str, list[ScoredTree]]]:
    """Closed trees of each group in order of index; dropped ones are left out."""
    kept = [t for t in trees if t.state != tree_pb2.TREE_STATE_DROPPED]
    groups: dict[str, list[tree_pb2.Tree]] = {group_id: [] for group_id in group_ids}
    for tree in sorted(kept, key=lambda t: t.spec.index):
        groups[tree.spec.group_id].append(tree)
    return [(group_id, [scored_tree(t) for t in members]) for group_id, members in groups.items()]
