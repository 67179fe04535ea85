"""The store that tests of whole groups write to."""

import json

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from tests.treestore.client import served
from tests.verifier.groups.world import RECIPE


@pytest.fixture
async def store(nats_server, tmp_path):
    async with served(nats_server.url, tmp_path) as made:
        made.forge.run_id = "vote-00000001"
        run = made.forge.run()
        run.recipe_json = json.dumps(RECIPE)
        epoch = (
            await rpc.call(made.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g"))
        ).epoch
        await rpc.call(
            made.runs.PutRun, rs.PutRunRequest(run=run, request_id="vote", gateway_epoch=epoch)
        )
        made.epoch = epoch
        yield made
