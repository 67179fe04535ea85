"""A node on another continent: its packets take a while, and it joins all the same."""

import asyncio
import contextlib

from tests.gateway.join.test_credentials import Secured, secured

__all__ = ["secured"]
_WAY_S = 0.15  # a round trip of 300 ms: the other side of the earth


async def test_a_node_far_away_connects(secured: Secured) -> None:
    host, port = secured.address.split(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await asyncio.sleep(_WAY_S)
                writer.write(data)
        writer.close()

    async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        below, above = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, above), carry(below, writer))

    async with await asyncio.start_server(far, "127.0.0.1", 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        node = await secured.node(address=address)
        assert node.client.is_connected
        await node.close()
