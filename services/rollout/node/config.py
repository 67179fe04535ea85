"""What a node is: of which run, under which name, and how much it may take."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """What a node is and may take."""

    run_id: str
    node_id: str
    max_branches: int
    joined: bool = False
    lockstep: bool = False
    most_trees: int = 4096
    policy_wait_s: float = 30.0
    segment_deadline_s: float = 120.0
    drain_s: float = 8.0
    refresh_s: float = (
        0.0  # that running branches may go on when a new policy comes; 0 cuts them at once
    )
