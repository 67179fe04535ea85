"""A tree's nodes as steps: the unit that node-valued estimators compare.

A step begins after the prompt and where scored paths part or end, for every estimator. With `branches` that is all: a step
is what lies between two forks, whatever was said in it. With `turns` one begins after what an environment said too (so that
a step is an action with its observation), and after a tool call without an answer. With `segments` every segment begins
one, but one that goes on after ABORTED. A place with a reward of its own ends a step for estimators that use such rewards
(`rewarded`); for others a score inside a path changes nothing. So a segment that only ends (a policy change, a boundary
without a fork) begins a step with `segments` alone.
"""

from dataclasses import dataclass, field

from banyan.segment import Finish, Kind
from banyan.tree import Leaf
from banyan.view import Node, TreeView

TURNS, SEGMENTS, BRANCHES = "turns", "segments", "branches"


@dataclass(slots=True)
class Step:
    """One step. nodes: its nodes, from above to below; paths: scored leaves at or below."""

    above: int
    nodes: list[Node] = field(default_factory=list)

    @property
    def paths(self) -> int:
        return self.nodes[0].paths

    @property
    def observed(self) -> bytes:
        """What the environment said last in it, as token bytes; empty where it said nothing."""
        said: list[bytes] = []
        for node in reversed(self.nodes):
            if node.segment.kind is not Kind.TOOL:
                break
            said.append(node.tokens_T.tobytes())
        return b"".join(reversed(said))


def steps_of(
    view: TreeView, by: str = TURNS, rewarded: bool = False
) -> tuple[list[Step], list[int]]:
    """Return the steps of a tree, parents first, and the step of each node; -1 where no scored leaf is below.

    by: what begins a step.
    rewarded: whether a place with a reward of its own ends one.
    """
    steps: list[Step] = []
    step_N = [-1] * len(view.nodes)
    for node in view.nodes:
        if not node.paths:
            continue
        above = view.nodes[node.parent] if node.parent >= 0 else None
        if above is None or _parts(above, node, by) or (rewarded and _has_reward(view, above)):
            step_N[node.index] = len(steps)
            steps.append(Step(step_N[above.index] if above else -1))
        else:
            step_N[node.index] = step_N[above.index]
        steps[step_N[node.index]].nodes.append(node)
    return steps, step_N


def _has_reward(view: TreeView, node: Node) -> bool:
    return Leaf(node.segment.id, node.stop) in view.facts.rewards


def _parts(above: Node, node: Node, by: str) -> bool:
    """Whether a step ends with `above`."""
    kind, after = above.segment.kind, node.segment.kind
    if above.paths != node.paths:
        return True
    if kind is Kind.PROMPT:
        return after is not kind
    if by == BRANCHES:
        return False
    if kind is Kind.TOOL:
        return after is not kind
    ended = above.stop == len(above.segment) and after is not Kind.TOOL
    if by == SEGMENTS and node.start == 0 and kind is Kind.POLICY and after is not Kind.TOOL:
        return not (ended and above.segment.finish is Finish.ABORTED)
    return ended and above.segment.finish is Finish.TOOL_CALL
