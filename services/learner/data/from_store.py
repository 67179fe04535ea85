"""From stored trees to the domain: scored trees in a fixed order, held-out rows refused. Pure."""

from collections.abc import Iterable, Sequence

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.errors import Refused
from banyan.plugins import Observation
from banyan.reasons import Reason
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.generate_spec import GenerateSpec
from banyan.wire.scored_tree import scored_tree as scored_tree
from services.learner.packing.head_observations import LeafObservations


def refuse_untrainable(trees: Sequence[tree_pb2.Tree], held_out: frozenset[bytes]) -> None:
    """Raise Refused for a held-out row, or a tree that only measures."""
    for tree in trees:
        name = f"tree {tree.spec.tree_id.hex()[:12]} of group {tree.spec.group_id}"
        if tree.spec.row_digest in held_out:
            raise Refused(
                f"{name} belongs to held-out row {tree.spec.row_digest.hex()[:12]}; "
                "it is never trained on",
                Reason.HELD_OUT,
            )
        if tree.spec.purpose != tree_pb2.TREE_PURPOSE_TRAIN:
            raise Refused(
                f"{name} was opened to measure a policy, not to train one",
                Reason.NOT_FOR_TRAINING,
            )


def leaf_observations(
    trees: Sequence[tree_pb2.Tree], scored: Iterable[ScoredTree]
) -> LeafObservations:
    """Return the observations for the value head, by leaf.

    The tree policies that grew the trees choose them.
    """
    specs = {tree.spec.tree_id: tree.spec.generate_json for tree in trees}
    observations: dict[Leaf, list[Observation]] = {}
    for tree in scored:
        generate = GenerateSpec.from_json(specs[tree.tree.tree_id])
        tree_policy = registry.build("generate", generate.name, generate.settings)
        for observation in tree_policy.observations(tree.tree, tree.leaves):
            observations.setdefault(observation.leaf, []).append(observation)
    return observations


def by_group(
    trees: Sequence[tree_pb2.Tree], group_ids: Sequence[str]
) -> list[tuple[str, list[ScoredTree]]]:
    """Return the closed trees of each group in order of index, without dropped ones."""
    kept = [t for t in trees if t.state != tree_pb2.TREE_STATE_DROPPED]
    groups: dict[str, list[tree_pb2.Tree]] = {group_id: [] for group_id in group_ids}
    for tree in sorted(kept, key=lambda t: t.spec.index):
        groups[tree.spec.group_id].append(tree)
    return [(group_id, [scored_tree(t) for t in members]) for group_id, members in groups.items()]
