"""The delay before a process that ended is started again, and the division of the cores."""

import pytest

from services.supervisor.backoff import Backoff
from services.supervisor.fleet import threads_for

BACKOFF = Backoff(first_s=1.0, longest_s=5.0, limit=5, window_s=100.0)


def test_delays_double_up_to_the_longest() -> None:
    exits: list[float] = []
    delays = []
    for n in range(4):
        exits.append(float(n))
        delays.append(BACKOFF.delay_s(exits, float(n)))
    assert delays == [1.0, 2.0, 4.0, 5.0]


def test_it_gives_up_at_the_limit_and_forgets_old_exits() -> None:
    exits = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert BACKOFF.delay_s(exits, 5.0) is None
    assert BACKOFF.delay_s(exits, 200.0) == 1.0


def threads(
    service: str, setting: int | str, staleness: int, *, nodes: int = 1, runs: int = 1, cores: int
) -> int:
    return threads_for(
        service, setting, max_staleness=staleness, rollout_nodes=nodes, runs=runs, cores=cores
    )


@pytest.mark.parametrize("service", ["rollout", "learner"])
def test_threads_are_all_cores_in_turn_and_divided_at_once(service: str) -> None:
    assert threads(service, "auto", 0, cores=2) == 2
    assert threads(service, "auto", 1, cores=2) == 1
    assert threads(service, 3, 0, cores=2) == 3


def test_rollout_nodes_divide_the_cores() -> None:
    assert threads("rollout", "auto", 0, nodes=4, cores=2) == 1


@pytest.mark.parametrize("service", ["rollout", "learner"])
def test_concurrent_runs_have_a_share_each(service: str) -> None:
    assert threads(service, "auto", 0, runs=2, cores=8) == 4
    assert threads(service, "auto", 1, runs=2, cores=8) == 2
    assert threads(service, "auto", 0, runs=5, cores=2) == 1
    assert threads(service, 3, 0, runs=2, cores=2) == 3


@pytest.mark.parametrize("nodes", range(1, 9))
@pytest.mark.parametrize("cores", range(1, 33))
def test_a_run_has_no_more_threads_than_cores_where_a_division_fits(cores: int, nodes: int) -> None:
    run = {"max_staleness": 1, "rollout_nodes": nodes, "cores": cores}
    learner = threads_for("learner", "auto", **run)
    each = threads_for("rollout", "auto", **run)
    assert learner >= 1 and each >= 1
    assert learner + nodes * each <= max(cores, 1 + nodes)
