"""Cost of the page: the memory of a browser that watches, and the services' processor time."""

import asyncio

from bench.harness.table import Result
from bench.page import memory, processor


def run() -> Result:
    """Measure both, ten minutes and about five."""
    result = Result("page")
    asyncio.run(memory.measure(result))
    asyncio.run(processor.measure(result))
    return result
