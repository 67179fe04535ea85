"""Loops that end together: the first to end ends the others, even if one misses a cancellation."""

import asyncio

import pytest

from services.chassis.process.process import cancelled, first_of


async def _deaf(misses: int) -> None:
    """Ignore `misses` cancellations, as a library that swallows one together with a message."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            misses -= 1
            if misses < 0:
                raise


async def test_a_loop_that_misses_its_cancellation_ends_all_the_same() -> None:
    await asyncio.wait_for(first_of(asyncio.sleep(0), _deaf(2)), 10)


async def test_the_error_of_the_first_is_raised_and_those_of_the_others_are_not() -> None:
    async def fails() -> None:
        raise ValueError("this one")

    async def fails_at_the_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise RuntimeError("not this one")

    with pytest.raises(ValueError, match="this one"):
        await asyncio.wait_for(first_of(fails(), fails_at_the_end()), 10)


async def test_what_has_ended_is_not_waited_for() -> None:
    done = asyncio.ensure_future(asyncio.sleep(0))
    await done
    await asyncio.wait_for(cancelled([done]), 5)
    await asyncio.wait_for(cancelled([]), 5)
