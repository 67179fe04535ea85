"""Documents of trees: a line each, and whole with a node for each stretch between forks. Pure."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.credit.estimate import ScoredTree
from banyan.segment import Kind, Segment
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.view import Node, TreeView
from banyan.wire import plain_data
from banyan.wire.segments import leaf_from_wire
from services.gateway.page.documents import why
from services.gateway.page.documents.runs import finite
from services.gateway.page.documents.token_texts import TokenTexts

OVER = (
    tree_pb2.TREE_STATE_CLOSED,
    tree_pb2.TREE_STATE_CONSUMED,
    tree_pb2.TREE_STATE_DROPPED,
)
_Floats = npt.NDArray[Any]


def summary(message: ts.TreeSummary) -> dict[str, Any]:
    """Return a tree in one line."""
    return {
        "tree_id": message.tree_id.hex(),
        "run_id": message.run_id,
        "state": state_name(message.state),
        "reason": message.reason or None,
        "purpose": purpose_name(message.purpose),
        "label": message.label or None,
        "policy_step": message.policy_step if message.sampled_tokens else None,
        "leaves": message.leaves,
        "segments": message.segments,
        "sampled_tokens": message.sampled_tokens,
        "mean_reward": finite(message.mean_reward) if message.HasField("mean_reward") else None,
        "opened": plain_data.when(message.opened_unix_ms),
        "closed": plain_data.when(message.closed_unix_ms),
        "group_id": message.group_id,
        "row": message.row_digest.hex(),
    }


def revision(message: ts.TreeSummary) -> str:
    """Return a text that changes with whatever a tree's document shows."""
    counts = (message.state, message.claim_epoch, message.segments, message.leaves, message.scores)
    return "-".join(map(str, counts))


def state_name(state: int) -> str:
    """Return the name of a tree's state: CLOSED instead of TREE_STATE_CLOSED."""
    name = tree_pb2.TreeState.Name(tree_pb2.TreeState.ValueType(state))
    return name.removeprefix("TREE_STATE_")


def purpose_name(purpose: int) -> str:
    """Return the name of a tree's purpose: TRAIN instead of TREE_PURPOSE_TRAIN."""
    name = tree_pb2.TreePurpose.Name(tree_pb2.TreePurpose.ValueType(purpose))
    return name.removeprefix("TREE_PURPOSE_")


def score_state(state: int) -> str:
    """Return the name of a score's state: SCORED instead of SCORE_STATE_SCORED."""
    name = tree_pb2.ScoreState.Name(tree_pb2.ScoreState.ValueType(state))
    return name.removeprefix("SCORE_STATE_")


def trace_id(traceparent: str) -> str | None:
    """Return the trace of a W3C traceparent; None without one."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 and int(parts[1], 16) else None


def whole(
    message: tree_pb2.Tree,
    scored: ScoredTree,
    group: Sequence[bytes],
    *,
    advantages: Mapping[int, float],
    advantage_note: str | None,
    texts: TokenTexts | None,
    revision: str,
) -> dict[str, Any]:
    """Return a tree with its nodes. Raise InvalidInput for a tree that no view can be made of.

    scored: the same tree with its rewards
    group: ids of the trees of its group, in order of index
    advantages: by node of the view of its leaves (`node_advantages`)
    advantage_note: why advantages are missing or provisional
    texts: the run's tokenizer, by which parts of a segment have a text
    """
    spec = message.spec
    nodes = _Nodes(message, scored, advantages, texts).documents() if message.segments else []
    return {
        "tree_id": spec.tree_id.hex(),
        "run_id": spec.run_id,
        "group_id": spec.group_id,
        "index": spec.index,
        "group": [tree_id.hex() for tree_id in group],
        "row": spec.row_digest.hex(),
        "label": spec.label or None,
        "purpose": purpose_name(spec.purpose),
        "state": state_name(message.state),
        "reason": message.reason or None,
        "opened": plain_data.when(message.opened_unix_ms),
        "closed": plain_data.when(message.closed_unix_ms),
        "policy": policy_name(spec),
        "trace_id": trace_id(spec.traceparent),
        "messages": messages(spec.messages_json),
        "scorers": list(spec.scorers),
        "nodes": nodes,
        "reward_mean": _mean_reward(scored),
        "advantage_note": advantage_note,
        "revision": revision,
    }


def policy_name(spec: tree_pb2.TreeSpec) -> str | None:
    """Return the name of the tree policy."""
    name = _object(spec.generate_json).get("name")
    return name if isinstance(name, str) else None


def messages(messages_json: str) -> list[dict[str, str]]:
    """Return the prompt's messages; whatever else a row may hold there is shown as JSON."""
    try:
        found = json.loads(messages_json or "[]")
    except ValueError:
        return [{"role": "", "content": messages_json}]
    if not isinstance(found, list):
        return [{"role": "", "content": _as_text(found)}]
    return [
        {"role": _as_text(m.get("role", "")), "content": _as_text(m.get("content", ""))}
        if isinstance(m, dict)
        else {"role": "", "content": _as_text(m)}
        for m in found
    ]


def score(message: tree_pb2.ScoredLeaf, *, again: bool = False) -> dict[str, Any]:
    """Return a score; `again` for one that came after the run's own."""
    return {
        "scorer": message.scorer,
        "version": message.scorer_version,
        "state": score_state(message.score.state),
        "value": finite(message.score.value)
        if message.score.state == tree_pb2.SCORE_STATE_SCORED
        else None,
        "parts": plain_data.numbers(dict(message.score.parts)),
        "reason": message.score.reason or None,
        "seconds": round(message.duration_ms / 1000, 6) if message.duration_ms else None,
        "again": again,
    }


def scores_by_leaf(message: tree_pb2.Tree) -> dict[Leaf, list[dict[str, Any]]]:
    """Return the scores of each place: the run's own, then those that came later."""
    found: dict[Leaf, list[dict[str, Any]]] = {}
    for scored in message.scores:
        found.setdefault(leaf_from_wire(scored.leaf), []).append(score(scored))
    for rescore in message.rescores:
        leaf = leaf_from_wire(rescore.scored.leaf)
        found.setdefault(leaf, []).append(score(rescore.scored, again=True))
    return found


def kind_name(segment: Segment) -> str:
    """Return the kind of a segment as the page names it."""
    return "CONTEXT" if segment.kind is Kind.PROMPT else segment.kind.name


def mean(values: _Floats) -> float | None:
    """Return the mean of the finite ones of some values; None without any."""
    known = values[np.isfinite(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else None


class _Nodes:
    """The nodes of a tree, with the branches that end in no leaf: running ones, and abandoned."""

    def __init__(
        self,
        message: tree_pb2.Tree,
        scored: ScoredTree,
        advantages: Mapping[int, float],
        texts: TokenTexts | None,
    ) -> None:
        self._texts = texts
        self._tree, self._rewards, self._facts = scored.tree, scored.rewards, scored.facts
        leaves = scored.leaves
        self._leaves = set(leaves)
        plain, tips = self._view_of(leaves), self._tips()
        self._view = self._view_of([*leaves, *tips]) if tips else plain
        self._advantages = self._by_place(plain, advantages)
        self._scores = scores_by_leaf(message)
        self._plans = why.read(message.plans)

    def _view_of(self, leaves: Sequence[Leaf]) -> TreeView:
        return TreeView(self._tree, leaves, self._rewards, self._facts)

    def _tips(self) -> list[Leaf]:
        """Return the ends of branches that hold no leaf and that nothing continues."""
        ended = {leaf.segment for leaf in self._leaves}
        return [
            Leaf(segment.id, len(segment))
            for segment in self._tree
            if len(segment)
            and segment.parent
            and segment.id not in ended
            and not self._tree.children.get(segment.id)
        ]

    @staticmethod
    def _by_place(
        view: TreeView, advantages: Mapping[int, float]
    ) -> dict[bytes, list[tuple[int, int, float]]]:
        """Return the advantages by segment, each with its range of tokens."""
        found: dict[bytes, list[tuple[int, int, float]]] = {}
        for index, value in advantages.items():
            node = view.nodes[index]
            if node.trained:
                found.setdefault(node.segment.id, []).append((node.start, node.stop, value))
        return found

    def documents(self) -> list[dict[str, Any]]:
        """Return the nodes in depth-first order."""
        children = Counter(node.parent for node in self._view.nodes)
        return [self._document(node, children[node.parent]) for node in self._view.nodes]

    def _document(self, node: Node, siblings: int) -> dict[str, Any]:
        segment, view = node.segment, self._view
        end = None if node.leaf is None else view.leaves_L[node.leaf]
        leaf = end if end in self._leaves else None
        text, is_own = self._text(node)
        sampled = len(segment.logprobs_T) > 0
        place = Leaf(segment.id, node.stop)
        return {
            "i": node.index,
            "parent": node.parent,
            "segment": segment.id.hex(),
            "start": node.start,
            "stop": node.stop,
            "kind": kind_name(segment),
            "finish": segment.finish.name if node.stop == len(segment) else None,
            "text": text,
            "text_of": "node" if is_own else "segment",
            "tokens": len(node),
            "paths": node.paths,
            "value": node.value if node.paths else None,
            "advantage": self._advantage(node),
            "entropy": mean(segment.entropies_T[node.start : node.stop].astype(np.float64)),
            "logprob": mean(node.logprobs_T) if sampled else None,
            "policy_step": segment.policy_step if segment.policy else None,
            "producer": segment.producer,
            "leaf": None if leaf is None else self._leaf(leaf, float(view.rewards_L[node.leaf])),
            "own_reward": finite(self._facts.rewards.get(place)),
            "why": why.of_node(
                self._plans,
                segment,
                node.start,
                node.stop,
                siblings=siblings,
                is_leaf=leaf is not None,
            ),
        }

    def _leaf(self, leaf: Leaf, reward: float) -> dict[str, Any]:
        return {"reward": finite(reward), "scores": self._scores.get(leaf, [])}

    def _advantage(self, node: Node) -> float | None:
        for start, stop, value in self._advantages.get(node.segment.id, ()):
            if start <= node.start and node.stop <= stop:
                return finite(value)
        return None

    def _text(self, node: Node) -> tuple[str, bool]:
        """Return a node's text, and whether it is its own: without a tokenizer a part of a segment
        has the text of the whole segment.
        """
        if (node.start, node.stop) == (0, len(node.segment)):
            return node.segment.text, True
        if self._texts is None:
            return node.segment.text, False
        return self._texts.whole(node.tokens_T.tolist()), True


def _mean_reward(scored: ScoredTree) -> float | None:
    known = [r for leaf in scored.leaves if (r := scored.rewards.get(leaf)) is not None]
    return finite(sum(known) / len(known)) if known else None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
