"""Configuration of a rollout node."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """The identity of a node and its bounds.

    run_id: run that it serves.
    node_id: its name, which is in every segment that it makes.
    max_branches: branches that its engine samples side by side.
    joined: whether it came by `banyan join`.
    lockstep: whether its engine takes a step only when the last one was answered.
    most_trees: trees that it holds at most.
    policy_wait_s: time that a claimed tree waits for a policy before it is returned.
    segment_deadline_s: time after which a tree that stands still is no longer renewed.
    drain_s: time for a drain.
    refresh_s: time that running branches may go on when a new policy comes; 0 cuts them at once.
    """

    run_id: str
    node_id: str
    max_branches: int
    joined: bool = False
    lockstep: bool = False
    most_trees: int = 4096
    policy_wait_s: float = 30.0
    segment_deadline_s: float = 120.0
    drain_s: float = 8.0
    refresh_s: float = 0.0
