"""Trees from JSON lines, as `banyan trees export` prints them or people write them.

Required are `tree_id`, `task_id`, and of each node `id` and `parent` (null for the prompt). All
else is as stored, with plain defaults: a continuation of all of its parent, of kind POLICY (the
first node: PROMPT), one token long. `leaves` lists the ends of paths; in a tree without that key
every node without children ends one, with its `reward`. A reward on any other node is its own;
`own` lists those of places within a node, each with its `end` in tokens. `named` holds a node's
attributes, `parts` those of its leaf's score. `purpose` EVAL marks a tree of an evaluation;
`group_id` is the group that it was grown in.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from banyan.cli.render.node_values import count, enum, numbers, word
from banyan.cli.render.tree_ends import ends
from banyan.errors import InvalidInput
from banyan.facts import Facts
from banyan.segment import Finish, Kind, Origin, Segment
from banyan.tree import Leaf, Tree


@dataclass(frozen=True, slots=True)
class TreeLine:
    """Tree of a file.

    task_id, tree_id: ids in the file
    number: number of its line
    group_id: group that it was grown in; empty if unknown
    names: id in the file of each segment
    silent: a sampled segment without log-probs; empty without any
    evaluates: whether it belongs to an evaluation
    """

    task_id: str
    tree_id: str
    number: int
    tree: Tree
    leaves: list[Leaf]
    rewards: dict[Leaf, float | None]
    facts: Facts
    names: dict[bytes, str]
    silent: str = ""
    group_id: str = ""
    evaluates: bool = False


def read(text: str, number: int) -> TreeLine:
    """Return the tree of a line.

    Raises InvalidInput that names the line, the node and the value.
    """
    try:
        return _read(text, number)
    except InvalidInput as error:
        raise InvalidInput(f"line {number}: {error}") from None
    except RecursionError:
        raise InvalidInput(
            f"line {number}: lists and objects within each other, deeper than can be read"
        ) from None


def _read(text: str, number: int) -> TreeLine:
    data = _object(text)
    nodes = _nodes(data)
    tree_id = word(data, "tree_id", "the tree")
    task_id = word(data, "task_id", "the tree")
    tree = Tree(_bytes_of(tree_id))
    by_name: dict[str, Segment] = {}
    for node in _parents_first(nodes):
        by_name[node["id"]] = _segment(node, tree, by_name)
        try:
            tree.add(by_name[node["id"]])
        except InvalidInput as error:
            raise InvalidInput(f"node {node['id']!r}: {error}") from None
    leaves, rewards, facts = ends(nodes, by_name)
    silent = next(
        (n["id"] for n in nodes if by_name[n["id"]].kind is Kind.POLICY and not n.get("logprobs")),
        "",
    )
    names = {by_name[n["id"]].id: n["id"] for n in nodes}
    group_id = word(data, "group_id", "the tree") if data.get("group_id") else ""
    evaluates = data.get("purpose") == "EVAL"
    return TreeLine(
        task_id=task_id,
        tree_id=tree_id,
        number=number,
        tree=tree,
        leaves=leaves,
        rewards=rewards,
        facts=facts,
        names=names,
        silent=silent,
        group_id=group_id,
        evaluates=evaluates,
    )


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:  # no JSON, or a number of thousands of digits
        raise InvalidInput(
            f"not JSON ({error}); give one tree a line, as `banyan trees export` prints them"
        ) from None
    if not isinstance(data, dict):
        raise InvalidInput(f"a tree is a JSON object, got {text[:40]!r}")
    return data


def _nodes(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    nodes = data.get("nodes")
    if not isinstance(nodes, list) or not nodes or not all(isinstance(n, dict) for n in nodes):
        raise InvalidInput(
            f"`nodes` must be a list of objects, the prompt first, got {json.dumps(nodes)[:60]}"
        )
    names: set[str] = set()
    for node in nodes:
        name = word(node, "id", "a node")
        if name in names:
            raise InvalidInput(f"node {name!r} stands twice; ids must differ")
        names.add(name)
    return nodes


def _bytes_of(name: str) -> bytes:
    try:
        return bytes.fromhex(name)
    except ValueError:
        return name.encode()


def _parents_first(nodes: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Return the nodes in an order in which each comes after its parent."""
    waiting: dict[str | None, list[dict[str, Any]]] = {}
    known = {node["id"] for node in nodes}
    for node in nodes:
        parent = node.get("parent") or None
        if parent is not None and (not isinstance(parent, str) or parent not in known):
            raise InvalidInput(
                f"node {node['id']!r} has parent {parent!r}, which is not a node of the tree"
            )
        waiting.setdefault(parent, []).append(node)
    ready = list(waiting.pop(None, []))
    for node in ready:
        ready += waiting.pop(node["id"], [])
    if waiting:
        raise InvalidInput(
            f"node {next(iter(waiting))!r} is its own ancestor, or no node has parent null"
        )
    return ready


def _segment(node: Mapping[str, Any], tree: Tree, segments: Mapping[str, Segment]) -> Segment:
    parent = segments.get(node.get("parent") or "")
    kind = enum(node, "kind", Kind, Kind.POLICY if parent else Kind.PROMPT)
    tokens = np.array(numbers(node, "tokens", [0], whole=True), np.int32)
    logprobs = numbers(node, "logprobs", [])
    if kind is Kind.POLICY and not logprobs:
        logprobs = [0.0] * len(tokens)
    fork = count(node, "fork", len(parent) if parent else 0)
    parent_id = parent.id if parent else b""
    siblings = sum(c.fork == fork for c in tree.children.get(parent_id, ()))
    try:
        return Segment(
            tree_id=tree.tree_id,
            parent=parent_id,
            fork=fork,
            ordinal=count(node, "ordinal", siblings),
            kind=kind,
            tokens_T=tokens,
            logprobs_T=np.array(logprobs, np.float32),
            origin=enum(node, "origin", Origin, Origin.NONE),
            finish=enum(node, "finish", Finish, Finish.BOUNDARY),
            policy_step=count(node, "policy_version", 0),
            entropies_T=np.array(numbers(node, "entropies", []), np.float32),
        )
    except InvalidInput as error:
        raise InvalidInput(f"node {node['id']!r}: {error}") from None
