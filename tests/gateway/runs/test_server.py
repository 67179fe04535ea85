"""GatewayService over real gRPC, on a store in memory with drivers running."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import InvalidInput, NotReady, Refused
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1.gateway_service_pb2_grpc import (
    GatewayServiceStub,
    add_GatewayServiceServicer_to_server,
)
from banyan.v1.runstore_service_pb2 import RunState as S
from services.chassis.renderers import family
from services.chassis.rpc import rpc
from services.gateway.join.admission import Admission, TokenVerifier, check_joinable
from services.gateway.runs.drivers import Drivers
from services.gateway.server import Gateway, JoinPort
from tests.cli.folders import whole_model


async def _queue(run_id: str) -> None:
    """Make no consumer: no node joins here."""


@pytest.fixture
async def gateway(store, bus, tmp_path):
    drivers = Drivers(store, bus, store, await store.take_epoch("test"))
    admission = Admission(store, tmp_path, "n:1", _queue)
    join = JoinPort("host:1", "ab" * 32)
    tokens = TokenVerifier(store, tmp_path)
    servicer = Gateway(store, drivers, tokens, admission, join=join, state=tmp_path)
    server = await rpc.serve(
        "127.0.0.1:0", [lambda s: add_GatewayServiceServicer_to_server(servicer, s)], []
    )
    channel = rpc.channel(server.address)
    driving = asyncio.create_task(drivers.run())
    yield GatewayServiceStub(channel)
    driving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await driving
    await channel.close(None)
    await server.stop(0)


async def _create(gateway: Any, recipe: Any, request_id: str = "") -> pb.CreateRunResponse:
    request = pb.CreateRunRequest(
        recipe_json=recipe.model_dump_json(), request_id=request_id, folder="/folder"
    )
    return await rpc.call(gateway.CreateRun, request)


async def test_a_run_is_created_once_per_request(gateway, store, recipe_of) -> None:
    first = await _create(gateway, recipe_of(), "key")
    second = await _create(gateway, recipe_of(), "key")
    assert first.run.run_id == second.run.run_id and len(store.runs) == 1
    assert first.run.run_id.startswith("tiny-") and len(first.run.run_id) == len("tiny-") + 8
    assert first.train_rows + first.held_out_rows == 145
    assert len(store.runs[first.run.run_id].held_out) == first.held_out_rows
    assert json.loads(first.run.recipe_json)["name"] == "tiny"


async def test_a_run_that_could_not_be_driven_is_not_stored(gateway, store, recipe_of) -> None:
    recipe = recipe_of(control={"curriculum": "tests.gateway.curriculum_doubles:Unclear"})
    with pytest.raises(InvalidInput, match="curriculum_doubles:Unclear: right must be a number"):
        await _create(gateway, recipe)
    assert not store.runs


async def test_a_deterministic_run_has_one_id_and_is_refused_twice(
    gateway, recipe_of, store
) -> None:
    first = await _create(gateway, recipe_of(deterministic=True))
    with pytest.raises(
        Refused, match=f"{first.run.run_id} is STARTING here already.*--resume.*seed.*--state"
    ):
        await _create(gateway, recipe_of(deterministic=True))
    other = await _create(gateway, recipe_of(deterministic=True, seed=1))
    assert first.run.run_id != other.run.run_id


async def test_bad_recipes_are_refused_with_the_key(gateway) -> None:
    for text, words in (
        ("{", "not JSON"),
        ("[]", "object"),
        ('{"name": "x", "modle": 1}', "modle"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await rpc.call(gateway.CreateRun, pb.CreateRunRequest(recipe_json=text))


async def test_settings_that_a_loss_does_not_take_are_refused(gateway, store, recipe_of) -> None:
    for settings, words in (
        ({"clip": 0.2}, "no setting 'clip'"),
        ({"clip_low": 3.0}, "clip_low 3.0 must lie in"),
    ):
        recipe = recipe_of()
        optimise = recipe.optimise.model_copy(update={"loss_settings": settings})
        with pytest.raises(InvalidInput, match=f"loss 'ppo-clip'.*{words}"):
            await _create(gateway, recipe.model_copy(update={"optimise": optimise}))
    assert not store.runs


async def test_a_broken_model_folder_is_refused_before_a_run_is_begun(
    gateway, store, recipe_of, tmp_path
) -> None:
    model = whole_model(tmp_path)
    (Path(model) / "tokenizer.json").unlink()
    with pytest.raises(InvalidInput, match="has no tokenizer"):
        await _create(gateway, recipe_of(model=model, resources={"engine": "torch"}))
    await _create(gateway, recipe_of(model=model, resources={"engine": "scripted"}))
    (Path(model) / "model.safetensors").unlink()
    for engine in ("torch", "scripted"):
        with pytest.raises(InvalidInput, match="has no weights"):
            await _create(gateway, recipe_of(model=model, resources={"engine": engine}))
    assert len(store.runs) == 1


@pytest.mark.parametrize(
    "model", ["/nowhere/on/this/host", "~nobody-here/m", "org/name", "n" * 200, "a\0b"]
)
async def test_a_model_that_is_not_here_is_for_the_nodes_to_find(gateway, recipe_of, model) -> None:
    assert (
        await _create(gateway, recipe_of(model=model, resources={"engine": "torch"}))
    ).run.run_id


async def test_a_watcher_sees_the_run_from_start_to_end(gateway, store, recipe_of) -> None:
    run_id = (await _create(gateway, recipe_of())).run.run_id
    states, policies = [], []

    async def act() -> None:
        while store.runs[run_id].state not in (S.RUN_STATE_SUCCEEDED, S.RUN_STATE_FAILED):
            if not store.policies:
                store.publish(0)
            store.finish()
            store.train(4)
            await rpc.call(gateway.CancelRun, pb.CancelRunRequest(run_id=run_id, pause=True))
            await rpc.call(gateway.ResumeRun, pb.ResumeRunRequest(run_id=run_id))
            await asyncio.sleep(0.05)

    acting = asyncio.create_task(act())
    async with asyncio.timeout(30):
        async for news in gateway.WatchRun(pb.WatchRunRequest(run_id=run_id[:8])):
            states.append(news.run.state)
            policies += [p.policy.step for p in news.policies]
    await acting
    assert states[-1] == S.RUN_STATE_SUCCEEDED
    assert policies == [0, 1, 2, 3]


async def test_cancel_pause_and_resume(gateway, store, recipe_of, eventually) -> None:
    run_id = (await _create(gateway, recipe_of())).run.run_id
    await eventually(lambda: store.desired.get(run_id) == {"rollout": 1, "learner": 1})
    paused = await rpc.call(
        gateway.CancelRun, pb.CancelRunRequest(run_id=run_id, pause=True, cause="Ctrl-C")
    )
    assert (paused.run.state, paused.run.cause) == (S.RUN_STATE_PAUSED, "Ctrl-C")
    await eventually(lambda: store.desired[run_id] == {})
    resumed = await rpc.call(gateway.ResumeRun, pb.ResumeRunRequest(run_id=run_id))
    assert resumed.run.state == S.RUN_STATE_STARTING
    await eventually(lambda: store.desired[run_id] == {"rollout": 1, "learner": 1})
    cancelled = await rpc.call(
        gateway.CancelRun, pb.CancelRunRequest(run_id=run_id, cause="enough")
    )
    assert cancelled.run.state == S.RUN_STATE_CANCELLED
    await eventually(lambda: store.desired[run_id] == {})
    with pytest.raises(Refused, match="CANCELLED and cannot become PAUSED"):
        await rpc.call(gateway.CancelRun, pb.CancelRunRequest(run_id=run_id, pause=True))
    with pytest.raises(Refused, match="CANCELLED"):
        await rpc.call(gateway.ResumeRun, pb.ResumeRunRequest(run_id=run_id))


async def test_only_a_resume_takes_a_failed_run_back(gateway, store, recipe_of, eventually) -> None:
    run_id = (await _create(gateway, recipe_of())).run.run_id
    store.publish(0)
    await eventually(lambda: store.runs[run_id].state == S.RUN_STATE_EVALUATING_BEFORE)
    await store.move_run(
        run_id, S.RUN_STATE_EVALUATING_BEFORE, S.RUN_STATE_FAILED, "learner 0 ended too often"
    )
    await eventually(lambda: store.desired.get(run_id) == {})
    for request in (
        pb.CancelRunRequest(run_id=run_id, pause=True),
        pb.CancelRunRequest(run_id=run_id),
    ):
        with pytest.raises(Refused, match="is FAILED and cannot become"):
            await rpc.call(gateway.CancelRun, request)
    with pytest.raises(Refused, match="is FAILED and cannot become EVALUATING_BEFORE"):
        await rpc.call(gateway.ResumeRun, pb.ResumeRunRequest(run_id=run_id))
    resumed = await rpc.call(gateway.ResumeRun, pb.ResumeRunRequest(run_id=run_id, failed=True))
    assert resumed.run.state == S.RUN_STATE_EVALUATING_BEFORE
    assert store.moves[-2:] == [
        ("PAUSED", "it had FAILED: learner 0 ended too often"),
        ("EVALUATING_BEFORE", ""),
    ]
    await eventually(lambda: store.desired[run_id] == {"rollout": 1, "learner": 1})


async def test_a_cause_that_a_resume_does_not_mend_is_named(
    gateway, store, recipe_of, eventually
) -> None:
    run_id = (await _create(gateway, recipe_of(budget={"steps": 3, "minutes": 2.0}))).run.run_id
    store.live_ms = 180_000
    await eventually(lambda: store.runs[run_id].state == S.RUN_STATE_FAILED)
    message = (
        f"run {run_id} FAILED and would fail again for the same reason:"
        " budget.minutes: 2 minutes are over .*; start a new run"
    )
    with pytest.raises(Refused, match=message) as refused:
        await rpc.call(gateway.ResumeRun, pb.ResumeRunRequest(run_id=run_id, failed=True))
    assert refused.value.reason == "NOT_CURED" and store.runs[run_id].state == S.RUN_STATE_FAILED


async def test_a_model_folder_is_stored_by_its_absolute_path(
    gateway, store, recipe_of, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = whole_model(tmp_path)
    stored = (await _create(gateway, recipe_of(model=f"./{Path(model).name}"))).run
    assert json.loads(stored.recipe_json)["model"] == model


async def test_processes_of_a_run_that_ended_under_another_gateway_are_wanted_no_more(
    store, bus, recipe_of
) -> None:
    store.desired["gone-1"] = {"learner": 1}
    drivers = Drivers(store, bus, store, 1)
    driving = asyncio.create_task(drivers.run())
    async with asyncio.timeout(5):
        while store.desired["gone-1"]:
            await asyncio.sleep(0.01)
    driving.cancel()


async def test_a_run_whose_rows_changed_is_paused_with_that_cause(
    store, bus, recipe_of, eventually
) -> None:
    from services.gateway.runs.create import new_run
    from services.gateway.tasks.dataset import Examples

    recipe = recipe_of()
    run = new_run(recipe, Examples(recipe.task, [], [], b"other"), "/f", Path("s")).run
    await store.put_run(run, "r")
    driving = asyncio.create_task(Drivers(store, bus, store, 1).run())
    await eventually(lambda: bool(store.moves))
    driving.cancel()
    assert (
        store.moves[0][0] == "PAUSED" and "not those that the run began with" in store.moves[0][1]
    )


async def test_a_newer_gateway_ends_this_ones_drivers(store, bus, recipe_of) -> None:
    from services.gateway.runs.create import new_run
    from services.gateway.tasks import dataset

    recipe = recipe_of()
    await store.put_run(
        new_run(recipe, await dataset.load(recipe, Path.cwd()), "/f", Path("s")).run, "r"
    )
    store.refuse_epoch = True
    with pytest.raises(Refused, match="newer gateway"):
        async with asyncio.timeout(10):
            await Drivers(store, bus, store, 1).run()


async def test_searches_are_not_ready_and_say_so(gateway) -> None:
    with pytest.raises(NotReady, match="no search policies"):
        async for _ in _errors(gateway.Expand(pb.ExpandRequest())):
            pass


async def _errors(stream: Any) -> Any:
    import grpc

    from banyan.wire import status

    try:
        async for message in stream:
            yield message
    except grpc.RpcError as error:
        raise status.error_of(error, "Expand") from None


async def test_no_node_joins_a_run_whose_model_nobody_here_can_read(
    gateway, store, recipe_of
) -> None:
    run_id = (await _create(gateway, recipe_of(resources={"engine": "torch"}))).run.run_id
    with pytest.raises(Refused, match="or no tokenizer") as refused:
        await rpc.call(gateway.CreateToken, pb.CreateTokenRequest(run_id=run_id))
    assert refused.value.reason == "NO_BOUNDS"


async def test_nodes_join_a_run_whose_paths_act(gateway, store, recipe_of) -> None:
    acting = recipe_of(environment={"name": "calculator"})
    run_id = (await _create(gateway, acting)).run.run_id
    answer = await rpc.call(gateway.CreateToken, pb.CreateTokenRequest(run_id=run_id))
    assert answer.token


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"external": ["send_mail"]}, "change something outside .*send_mail"),
        ({"renderer": "qwen3"}, "again, so no node can join: .*qwen3"),
        ({"renderer": "none"}, "there is no renderer 'none'"),
    ],
)
def test_no_node_joins_where_what_it_says_cannot_be_checked(
    recipe_of, monkeypatch, environment, message
) -> None:
    monkeypatch.setattr(family, "installed", lambda: "")  # the package is missing here
    recipe = recipe_of().model_dump(mode="json") | {
        "environment": {"name": "calculator", **environment},
        "resources": {"engine": "torch"},
    }
    run = runs.Run(
        run_id="r-1",
        recipe_json=json.dumps(recipe),
        state=S.RUN_STATE_TRAINING,
        vocabulary=9,
        tokenizer_digest=b"d" * 32,
    )
    with pytest.raises(Refused, match=message) as refused:
        check_joinable(run)
    assert refused.value.reason == "NO_ENVIRONMENT"


async def test_tokens_need_a_live_run(gateway, store, recipe_of) -> None:
    run_id = (await _create(gateway, recipe_of())).run.run_id
    answer = await rpc.call(gateway.CreateToken, pb.CreateTokenRequest(run_id=run_id, valid_s=60))
    assert answer.address == "host:1" and answer.token.endswith("." + "ab" * 32)
    assert answer.token.split(".")[0].encode() not in b"".join(store.tokens)
    assert list(store.tokens.values()) == [run_id]
    await rpc.call(gateway.CancelRun, pb.CancelRunRequest(run_id=run_id))
    with pytest.raises(Refused, match="over"):
        await rpc.call(gateway.CreateToken, pb.CreateTokenRequest(run_id=run_id))
