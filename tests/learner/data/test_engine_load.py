"""Occupancy of the engines: decoded segments over slots, of all nodes, since the step before."""

import pytest

from services.learner.data.engine_load import EngineLoad


def test_it_is_the_share_of_all_nodes_slots_since_the_step_before() -> None:
    engines = EngineLoad()
    assert engines.since({"a": (100, 400)}) == {}, "what came before the first step is not its own"
    assert engines.since({"a": (160, 480)}) == {"engine_occupancy": 60 / 80}
    # The second node has four times the slots: it weighs by them.
    two = {"a": (170, 500), "b": (16, 80)}
    assert engines.since(two) == {"engine_occupancy": pytest.approx((10 + 16) / (20 + 80))}


def test_a_step_without_a_report_has_none() -> None:
    engines = EngineLoad()
    engines.since({"a": (10, 20)})
    assert engines.since({"a": (10, 20)}) == {}
    assert engines.since({}) == {}, "the node has gone"


def test_a_node_that_was_started_again_counts_from_zero() -> None:
    engines = EngineLoad()
    engines.since({"a": (1000, 2000)})
    assert engines.since({"a": (3, 4)}) == {"engine_occupancy": 0.75}


def test_tokens_that_are_counted_late_make_no_share_above_1() -> None:
    engines = EngineLoad()
    engines.since({"a": (0, 10)})
    assert engines.since({"a": (30, 20)}) == {"engine_occupancy": 1.0}
