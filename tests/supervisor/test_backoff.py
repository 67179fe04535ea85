"""When a process that ended is started again."""

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


def test_threads_are_all_cores_in_turn_and_divided_at_once() -> None:
    assert (
        threads_for("rollout", "auto", 0, 1, cores=2) == 2
        and threads_for("learner", "auto", 0, 1, cores=2) == 2
    )
    assert (
        threads_for("rollout", "auto", 1, 1, cores=2) == 1
        and threads_for("learner", "auto", 1, 1, cores=2) == 1
    )
    assert threads_for("rollout", "auto", 0, 4, cores=2) == 1
    assert threads_for("learner", 3, 0, 1, cores=2) == 3


def test_runs_beside_each_other_have_a_share_each() -> None:
    for service in ("learner", "rollout"):
        assert threads_for(service, "auto", 0, 1, runs=2, cores=8) == 4
        assert threads_for(service, "auto", 1, 1, runs=2, cores=8) == 2
        assert threads_for(service, "auto", 0, 1, runs=5, cores=2) == 1
        assert threads_for(service, 3, 0, 1, runs=2, cores=2) == 3
