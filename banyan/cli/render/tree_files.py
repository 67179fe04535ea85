"""Trees from JSON lines, as `banyan trees export` prints them, or as people write them.

Needed: `tree_id`, `task_id`, and of each node `id` and `parent` (null for the prompt). The rest is as stored; what a person
leaves out has a plain value: a continuation of all of its parent, of kind POLICY (the first node: PROMPT), one token long.
`leaves` says where paths end; in a tree without that word every node without children ends one, with its `reward`. A reward
on any other node is its own; `own` lists those of places within a node, each with its `end` in tokens. `named` holds a
node's attributes, `parts` those of its leaf's score. A tree's `purpose` EVAL says that it is an evaluation's, its `group_id`
with which it was grown.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from banyan.errors import InvalidInput
from banyan.facts import Facts
from banyan.segment import Finish, Kind, Origin, Segment
from banyan.tree import Leaf, Tree


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A tree of a file. group_id: with which it was grown, empty where that is not said; names: the id that the file gives
    each segment; silent: a sampled segment without log-probs; evaluates: whether it is an evaluation's."""

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
    """The tree of a line. Raises InvalidInput that names the line, the node and the value."""
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
    tree_id, task_id = (_word(data, name, "the tree") for name in ("tree_id", "task_id"))
    tree = Tree(_bytes_of(tree_id))
    made: dict[str, Segment] = {}
    for node in _parents_first(nodes):
        made[node["id"]] = _segment(node, tree, made)
        try:
            tree.add(made[node["id"]])
        except InvalidInput as error:
            raise InvalidInput(f"node {node['id']!r}: {error}") from None
    leaves, rewards, facts = _ends(nodes, made)
    silent = next(
        (n["id"] for n in nodes if made[n["id"]].kind is Kind.POLICY and not n.get("logprobs")), ""
    )
    names = {made[n["id"]].id: n["id"] for n in nodes}
    group_id = _word(data, "group_id", "the tree") if data.get("group_id") else ""
    evaluates = data.get("purpose") == "EVAL"
    return TreeLine(
        task_id, tree_id, number, tree, leaves, rewards, facts, names, silent, group_id, evaluates
    )


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:  # JSON that is none, or a number of thousands of digits
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
    seen: set[str] = set()
    for node in nodes:
        name = _word(node, "id", "a node")
        if name in seen:
            raise InvalidInput(f"node {name!r} stands twice; ids must differ")
        seen.add(name)
    return nodes


def _word(data: Mapping[str, Any], name: str, whose: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{whose} needs {name!r}, a string, got {json.dumps(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{whose} has {name!r} {json.dumps(value)}, which holds half a character"
        ) from None
    return value


def _bytes_of(name: str) -> bytes:
    try:
        return bytes.fromhex(name)
    except ValueError:
        return name.encode()


def _parents_first(nodes: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Nodes in an order in which each comes after its parent."""
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


def _segment(node: Mapping[str, Any], tree: Tree, made: Mapping[str, Segment]) -> Segment:
    parent = made.get(node.get("parent") or "")
    kind = _enum(node, "kind", Kind, Kind.POLICY if parent else Kind.PROMPT)
    tokens = np.array(_numbers(node, "tokens", [0], whole=True), np.int32)
    logprobs = _numbers(node, "logprobs", [])
    if kind is Kind.POLICY and not logprobs:
        logprobs = [0.0] * len(tokens)
    fork = _count(node, "fork", len(parent) if parent else 0)
    at = parent.id if parent else b""
    taken = sum(c.fork == fork for c in tree.children.get(at, ()))
    try:
        return Segment(
            tree.tree_id,
            at,
            fork,
            _count(node, "ordinal", taken),
            kind,
            tokens,
            np.array(logprobs, np.float32),
            origin=_enum(node, "origin", Origin, Origin.NONE),
            finish=_enum(node, "finish", Finish, Finish.BOUNDARY),
            policy_step=_count(node, "policy_version", 0),
            entropies_T=np.array(_numbers(node, "entropies", []), np.float32),
        )
    except InvalidInput as error:
        raise InvalidInput(f"node {node['id']!r}: {error}") from None


def _enum(node: Mapping[str, Any], name: str, kinds: Any, plain: Any) -> Any:
    value = node.get(name)
    if value is None:
        return plain
    if not isinstance(value, str) or value not in kinds.__members__:
        raise InvalidInput(
            f"node {node['id']!r} has {name} {json.dumps(value)}; known: {', '.join(kinds.__members__)}"
        )
    return kinds[value]


def _count(node: Mapping[str, Any], name: str, plain: int) -> int:
    value = node.get(name)
    if value is None:
        return plain
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise InvalidInput(
            f"node {node['id']!r} has {name} {json.dumps(value)}; it must be a whole number from 0"
        )
    return value


_OR_NULL = ", or null where there is none"


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _number(value: Any, what: str, instead: str = "") -> float:
    if isinstance(value, bool) or not _finite(value):
        raise InvalidInput(f"{what} {json.dumps(value)}; it must be a finite number{instead}")
    return float(value)


def _numbers(
    node: Mapping[str, Any], name: str, plain: list[Any], whole: bool = False
) -> list[Any]:
    values = node.get(name)
    if values is None:
        return plain
    if not isinstance(values, list):
        raise InvalidInput(
            f"node {node['id']!r} has {name} {json.dumps(values)[:40]}; it must be a list of numbers"
        )
    for value in values:
        _number(value, f"node {node['id']!r} has in {name} the value")
        if whole and (not isinstance(value, int) or not 0 <= value < 2**31):
            raise InvalidInput(
                f"node {node['id']!r} has the token {value!r}; tokens are whole numbers from 0 to 2^31 - 1"
            )
    return values


Ends = tuple[list[Leaf], dict[Leaf, float | None], Facts]


def _ends(nodes: list[dict[str, Any]], made: Mapping[str, Segment]) -> Ends:
    """The leaves with their rewards, and what else is said of nodes."""
    rewards: dict[Leaf, float | None] = {}
    own: dict[Leaf, float] = {}
    parts: dict[Leaf, Mapping[str, float]] = {}
    spoken = any("leaves" in node for node in nodes)
    parents = {node.get("parent") for node in nodes}
    for node in nodes:
        segment = made[node["id"]]
        last = Leaf(segment.id, len(segment))
        reward = (
            None
            if node.get("reward") is None
            else _number(node["reward"], f"node {node['id']!r} has reward", _OR_NULL)
        )
        for leaf, value, said in _listed(node, segment) if spoken else ():
            if leaf in rewards:
                raise InvalidInput(
                    f"node {node['id']!r} has two leaves that end after {leaf.end} tokens; list each once"
                )
            if leaf == last and None not in (value, reward) and value != reward:
                both = f"reward {reward:g} and a leaf at its end with reward {value:g}"
                raise InvalidInput(
                    f"node {node['id']!r} has {both}; they are the same thing: give one"
                )
            rewards[leaf], parts[leaf] = value, said
        if not spoken and node["id"] not in parents and (node.get("parent") or reward is not None):
            rewards[last], parts[last] = reward, _parts(node, node["id"])
        elif reward is not None and not (spoken and node.get("leaves")):
            own[last] = reward
    carried = {made[node["id"]].id: _named(node) for node in nodes if node.get("named") is not None}
    inside: dict[Leaf, float | None] = {**own}
    for node in nodes:
        for place, value in _own(node, made[node["id"]]):
            if place in rewards or place in inside:
                raise InvalidInput(
                    f"node {node['id']!r} has two rewards at token {place.end}; give one"
                )
            inside[place] = value
    known = {place: value for place, value in inside.items() if value is not None}
    return (
        list(rewards),
        rewards,
        Facts(known, carried, parts, frozenset(inside.keys() - known.keys())),
    )


def _own(node: Mapping[str, Any], segment: Segment) -> Iterable[tuple[Leaf, float | None]]:
    """Rewards of places in a node that paths go on from; None where one could not be scored."""
    places = node.get("own") or []
    if not isinstance(places, list) or not all(isinstance(place, dict) for place in places):
        raise InvalidInput(
            f"node {node['id']!r} has own {json.dumps(places)[:40]}; they must be a list of objects"
        )
    for place in places:
        end = _count({"id": node["id"], "end": place.get("end")}, "end", len(segment))
        if not 0 < end <= len(segment):
            raise InvalidInput(
                f"node {node['id']!r} has a reward of its own at token {end} of {len(segment)}"
            )
        value = place.get("reward")
        what = f"a place in node {node['id']!r} has reward"
        yield Leaf(segment.id, end), None if value is None else _number(value, what, _OR_NULL)


def _listed(
    node: Mapping[str, Any], segment: Segment
) -> Iterable[tuple[Leaf, float | None, dict[str, float]]]:
    leaves = node.get("leaves") or []
    if not isinstance(leaves, list) or not all(isinstance(leaf, dict) for leaf in leaves):
        raise InvalidInput(
            f"node {node['id']!r} has leaves {json.dumps(leaves)[:40]}; they must be a list of objects"
        )
    for leaf in leaves:
        end = _count({"id": node["id"], "end": leaf.get("end")}, "end", len(segment))
        if end > len(segment):
            raise InvalidInput(
                f"node {node['id']!r} has a leaf that ends after {end} of its {len(segment)} tokens"
            )
        value = leaf.get("reward")
        reward = (
            None
            if value is None
            else _number(value, f"a leaf of node {node['id']!r} has reward", _OR_NULL)
        )
        yield Leaf(segment.id, end), reward, _parts(leaf, node["id"])


def _parts(data: Mapping[str, Any], name: str) -> dict[str, float]:
    parts = data.get("parts") or {}
    if not isinstance(parts, dict):
        raise InvalidInput(
            f"node {name!r} has parts {json.dumps(parts)[:40]}; they must be an object of numbers"
        )
    return {
        key: _number(value, f"node {name!r} has as part {key!r} the value")
        for key, value in parts.items()
    }


def _named(node: Mapping[str, Any]) -> dict[str, float | str]:
    named = node["named"]
    if not isinstance(named, dict) or not all(
        isinstance(v, str) or _finite(v) for v in named.values()
    ):
        raise InvalidInput(
            f"node {node['id']!r} has named {json.dumps(named)[:40]}; give an object of numbers and words"
        )
    return named
