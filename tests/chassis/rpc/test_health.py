"""Liveness by progress: pulses with deadlines, and the health service's answers."""

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.rpc import rpc
from services.chassis.rpc.health import LIVENESS, Liveness, Pulse


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_pulse_is_late_once_its_declared_time_is_over() -> None:
    clock = Clock()
    pulse = Pulse("engine", clock)
    assert not pulse.late  # nothing has begun
    pulse.beat("a step", 5.0)
    clock.now += 5.0
    assert not pulse.late
    clock.now += 2.0
    assert pulse.late == "engine: a step is 2 s over its deadline"
    pulse.beat("loading weights", 60.0)  # a long operation that says so
    clock.now += 50.0
    assert not pulse.late
    pulse.rest()
    clock.now += 1e6
    assert not pulse.late


def test_what_waits_for_something_that_is_away_begins_its_time_anew_and_a_rest_goes_on() -> None:
    clock = Clock()
    pulse = Pulse("passing on", clock)
    pulse.again()
    clock.now += 1e6
    assert not pulse.late
    pulse.beat("a batch", 5.0)
    clock.now += 6.0
    pulse.again()
    assert not pulse.late
    clock.now += 6.0
    assert pulse.late == "passing on: a batch is 1 s over its deadline"
    pulse.rest()
    pulse.again()
    clock.now += 1e6
    assert not pulse.late


def test_an_operation_that_ends_by_an_error_has_ended() -> None:
    clock = Clock()
    pulse = Pulse("torch", clock)
    with pytest.raises(ValueError), pulse.during("a step", 5.0):
        clock.now += 6.0
        assert pulse.late
        raise ValueError
    assert not pulse.late


def test_all_that_are_late_are_named_and_each_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, liveness = Clock(), Liveness()
    one, other, fine = (Pulse(name, clock) for name in ("one", "other", "fine"))
    liveness.add(one, other, fine)
    for pulse, within_s in ((one, 1.0), (other, 2.0), (fine, 100.0)):
        pulse.beat("work", within_s)
    clock.now += 3.0
    assert [said.partition(":")[0] for said in liveness.late()] == ["one", "other"]
    liveness.drop(other)
    assert [said.partition(":")[0] for said in liveness.late()] == ["one"]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["one", "other"]
    one.beat("work", 1.0)
    assert not liveness.late()
    clock.now += 2.0
    assert liveness.late() and len(caplog.records) == 3  # it is late a second time


async def _status(address: str, service: str) -> int:
    async with rpc.channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=service), timeout=5
        )
        return int(answer.status)


async def test_health_tells_a_process_that_is_not_ready_from_one_that_hangs() -> None:
    status, liveness, pulse = health_pb2.HealthCheckResponse, Liveness(), Pulse("torch")
    liveness.add(pulse)
    server = await rpc.serve("127.0.0.1:0", [], [], liveness=liveness)
    try:
        await server.set_serving(False)  # it loads
        pulse.beat("loading", 60.0)
        assert await _status(server.address, "") == status.NOT_SERVING
        assert await _status(server.address, LIVENESS) == status.SERVING
        await server.set_serving(True)
        pulse.beat("a step", -1.0)  # over already
        assert await _status(server.address, "") == status.SERVING
        assert await _status(server.address, LIVENESS) == status.NOT_SERVING
    finally:
        await server.stop(0)
