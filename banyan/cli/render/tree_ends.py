"""Ends of paths in files of trees: leaves with their rewards, and places inside paths."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from banyan.cli.render.node_values import count, named, optional_number, parts
from banyan.errors import InvalidInput
from banyan.facts import Facts
from banyan.segment import Segment
from banyan.tree import Leaf

Ends = tuple[list[Leaf], dict[Leaf, float | None], Facts]


@dataclass(slots=True)
class _Ends:
    """Ends and scored places of one tree; a reward is None where it is unscorable.

    rewards: rewards of the leaves
    parts: named parts of the leaves' scores
    inside: own rewards of places that are no leaves
    """

    rewards: dict[Leaf, float | None] = field(default_factory=dict)
    parts: dict[Leaf, Mapping[str, float]] = field(default_factory=dict)
    inside: dict[Leaf, float | None] = field(default_factory=dict)


def ends(nodes: list[dict[str, Any]], segments: Mapping[str, Segment]) -> Ends:
    """Return the leaves of a tree, their rewards, and the other facts of its nodes."""
    listed = any("leaves" in node for node in nodes)
    parents = {node.get("parent") for node in nodes}
    tree_ends = _Ends()
    for node in nodes:
        segment = segments[node["id"]]
        last = Leaf(segment.id, len(segment))
        reward = optional_number(node.get("reward"), f"node {node['id']!r} has reward")
        if listed:
            _add_listed(tree_ends, node, segment, reward)
        is_leaf = node["id"] not in parents and (node.get("parent") or reward is not None)
        if not listed and is_leaf:
            tree_ends.rewards[last] = reward
            tree_ends.parts[last] = parts(node, node["id"])
        elif reward is not None and not (listed and node.get("leaves")):
            tree_ends.inside[last] = reward
    for node in nodes:
        _add_inside(tree_ends, node, segments[node["id"]])
    attributes = {
        segments[node["id"]].id: named(node) for node in nodes if node.get("named") is not None
    }
    known = {place: value for place, value in tree_ends.inside.items() if value is not None}
    facts = Facts(
        rewards=known,
        named=attributes,
        parts=tree_ends.parts,
        unscorable=frozenset(tree_ends.inside.keys() - known.keys()),
    )
    return list(tree_ends.rewards), tree_ends.rewards, facts


def _add_listed(
    tree_ends: _Ends, node: Mapping[str, Any], segment: Segment, reward: float | None
) -> None:
    """Add the leaves that a node lists. reward: the node's own."""
    last = Leaf(segment.id, len(segment))
    for leaf, value, leaf_parts in _listed(node, segment):
        if leaf in tree_ends.rewards:
            raise InvalidInput(
                f"node {node['id']!r} has two leaves that end after {leaf.end} tokens; list "
                "each once"
            )
        if leaf == last and None not in (value, reward) and value != reward:
            both = f"reward {reward:g} and a leaf at its end with reward {value:g}"
            raise InvalidInput(f"node {node['id']!r} has {both}; they are the same thing: give one")
        tree_ends.rewards[leaf] = value
        tree_ends.parts[leaf] = leaf_parts


def _add_inside(tree_ends: _Ends, node: Mapping[str, Any], segment: Segment) -> None:
    """Add the rewards of places inside paths that a node lists."""
    for place, value in _own(node, segment):
        if place in tree_ends.rewards or place in tree_ends.inside:
            raise InvalidInput(
                f"node {node['id']!r} has two rewards at token {place.end}; give one"
            )
        tree_ends.inside[place] = value


def _own(node: Mapping[str, Any], segment: Segment) -> Iterable[tuple[Leaf, float | None]]:
    """Yield rewards of places inside paths in a node; None for unscorable."""
    places = node.get("own") or []
    if not isinstance(places, list) or not all(isinstance(place, dict) for place in places):
        raise InvalidInput(
            f"node {node['id']!r} has own {json.dumps(places)[:40]}; they must be a list of objects"
        )
    for place in places:
        end = count({"id": node["id"], "end": place.get("end")}, "end", len(segment))
        if not 0 < end <= len(segment):
            raise InvalidInput(
                f"node {node['id']!r} has a reward of its own at token {end} of {len(segment)}"
            )
        value = place.get("reward")
        what = f"a place in node {node['id']!r} has reward"
        yield Leaf(segment.id, end), optional_number(value, what)


def _listed(
    node: Mapping[str, Any], segment: Segment
) -> Iterable[tuple[Leaf, float | None, dict[str, float]]]:
    leaves = node.get("leaves") or []
    if not isinstance(leaves, list) or not all(isinstance(leaf, dict) for leaf in leaves):
        raise InvalidInput(
            f"node {node['id']!r} has leaves {json.dumps(leaves)[:40]}; they must be a list of "
            "objects"
        )
    for leaf in leaves:
        end = count({"id": node["id"], "end": leaf.get("end")}, "end", len(segment))
        if end > len(segment):
            raise InvalidInput(
                f"node {node['id']!r} has a leaf that ends after {end} of its {len(segment)} tokens"
            )
        value = leaf.get("reward")
        reward = optional_number(value, f"a leaf of node {node['id']!r} has reward")
        yield Leaf(segment.id, end), reward, parts(leaf, node["id"])
