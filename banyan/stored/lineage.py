"""Lineage of a segment: its ancestors, the scores below it, and the batches that used its tree."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from banyan.stored.segment import Policy, Score, Segment
from banyan.v1 import treestore_service_pb2 as ts


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch that used a tree.

    ordinal: number of the batch in its run
    use: of the tree in it
    set_aside: reason why it was not trained on; None of others
    policy: the policy that it made; None while its step is not done
    """

    ordinal: int
    use: str
    set_aside: str | None
    policy: Policy | None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Lineage of a segment.

    ancestors: from the prompt to the segment, both included
    scores: of the places at or below the segment
    row: the task's row
    """

    run_id: str
    tree_id: str
    group_id: str
    row_digest: str
    row: Mapping[str, Any]
    ancestors: tuple[Segment, ...]
    scores: tuple[Score, ...]
    batches: tuple[Batch, ...]

    @classmethod
    def of(cls, answer: ts.GetAncestryResponse, consumers: list[ts.Consumer]) -> "Lineage":
        """Return the lineage of two responses."""
        spec = answer.spec
        return cls(
            run_id=spec.run_id,
            tree_id=spec.tree_id.hex(),
            group_id=spec.group_id,
            row_digest=spec.row_digest.hex(),
            row=json.loads(spec.row_json or "{}"),
            ancestors=tuple(map(Segment.of, answer.segments)),
            scores=tuple(map(Score.of, answer.scores)),
            batches=tuple(
                Batch(
                    ordinal=consumer.batch.ordinal,
                    use=consumer.batch.use,
                    set_aside=consumer.batch.set_aside or None,
                    policy=Policy.of(consumer.policy),
                )
                for consumer in consumers
            ),
        )
