"""Callers of the store: services of ours, and joined nodes, for whom the gateway speaks."""

from typing import Any

import grpc.aio

from services.chassis.rpc.rpc import RUN_KEY


def run_of(call: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the run that the token of a joined node opens; empty for our own services."""
    return next(
        (str(value) for key, value in call.invocation_metadata() or () if key == RUN_KEY), ""
    )
