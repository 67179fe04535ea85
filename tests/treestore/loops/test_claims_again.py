"""The metric of trees that are claimed again: by run."""

import pytest

from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.process import telemetry
from services.treestore.api import tree_service


def test_a_tree_that_is_claimed_again_counts_under_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, int, str]] = []
    monkeypatch.setattr(
        telemetry, "count", lambda name, n, banyan_run: counted.append((name, n, banyan_run))
    )
    claims = [
        ts.ClaimTreeResponse(epoch=epoch, tree={"spec": {"run_id": run_id}})
        for run_id, epoch in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1))
    ]
    refused = ts.ClaimOutcome(refused="CLAIMED").claim
    tree_service._count_again([*claims, refused])
    # A run that has none yet has its 0, from which a first one can be told.
    assert counted == [("banyan.claims.again", n, run) for n, run in ((2, "a"), (1, "b"), (0, "c"))]
