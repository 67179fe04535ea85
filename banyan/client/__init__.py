"""Clients of a running system: `Client`, its twin `AsyncClient` for asyncio, and their connecting.

    with Client.connect(".banyan") as client:
        for tree in client.trees(run_id):
            print(tree.tree_id.hex(), tree.mean_reward)

They answer with the messages of proto/banyan/v1. Typed objects, which are also there when nothing
runs, are in `banyan.stored`.
"""

from banyan.client.asynchronous import AsyncClient
from banyan.client.client import Client
from banyan.client.connecting import Endpoints

__all__ = ["AsyncClient", "Client", "Endpoints"]
