"""A tree's nodes as steps: the unit that node-valued estimators compare.

For every estimator a step begins after the prompt and where scored paths part or end. With
`branches` that is all: a step is a run between two forks, whatever its content. With `turns` a step
begins also after an environment's output (so that a step is an action with its observation), and
after a tool call without an answer. With `segments` every segment begins a step, unless it
continues an ABORTED one.

A place with a reward of its own ends a step for estimators that use such rewards (`rewarded`); for
others a score inside a path changes nothing. So a segment that only ends (a policy change, a
boundary without a fork) begins a step with `segments` alone.
"""

from dataclasses import dataclass, field

from banyan.segment import Finish, Kind
from banyan.tree import Leaf
from banyan.view import Node, TreeView

TURNS, SEGMENTS, BRANCHES = "turns", "segments", "branches"


@dataclass(slots=True)
class Step:
    """One step of a tree.

    above: index of the step before, -1 for a prompt
    nodes: its nodes, from above to below
    """

    above: int
    nodes: list[Node] = field(default_factory=list)

    @property
    def paths(self) -> int:
        """Number of scored leaves at or below."""
        return self.nodes[0].paths

    @property
    def observed(self) -> bytes:
        """Last output of the environment in it, as token bytes; empty without any."""
        outputs: list[bytes] = []
        for node in reversed(self.nodes):
            if node.segment.kind is not Kind.TOOL:
                break
            outputs.append(node.tokens_T.tobytes())
        return b"".join(reversed(outputs))

    @property
    def anchor(self) -> bytes:
        """Name that the environment gave the state behind the step; empty without any."""
        receipt = self.nodes[-1].segment.receipt
        return receipt.observation.anchor if receipt is not None else b""


def steps_of(
    view: TreeView, by: str = TURNS, rewarded: bool = False
) -> tuple[list[Step], list[int]]:
    """Return the steps of a tree, parents first, and the step of each node.

    The step is -1 for nodes without a scored leaf below.

    by: definition of a step: turns, segments or branches
    rewarded: whether a place with a reward of its own ends one
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
    """Return whether a step ends with `above`."""
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
