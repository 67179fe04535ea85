"""One score of a judge: its questions, asked all at once, until it has its score or no time."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from banyan.errors import PermanentError
from banyan.plugins import Scored, Unscorable
from banyan.plugins.ask import Asker, Question
from services.verifier.judging.endpoint import Endpoint
from services.verifier.judging.spending import Spending, Spent


async def asked(
    asker: Asker,
    endpoint: Endpoint,
    completion: str,
    row: Mapping[str, Any],
    spending: Spending,
) -> Scored | Unscorable:
    """Return the score that an endpoint's replies give, or why there is none."""
    try:
        async with asyncio.timeout(asker.seconds):
            return await _conducted(asker, endpoint, completion, row, spending)
    except TimeoutError:
        return Unscorable(
            f"INFRASTRUCTURE: {endpoint.name} gave no score in {asker.seconds:g} s: "
            f"{endpoint.trouble}",
            retry=True,
        )
    except Spent as error:
        return Unscorable(f"BUDGET: {error}")
    except PermanentError as error:
        return Unscorable(f"EXCEPTION: {error}")


async def _conducted(
    asker: Asker,
    endpoint: Endpoint,
    completion: str,
    row: Mapping[str, Any],
    spending: Spending,
) -> Scored | Unscorable:
    asking = asker.ask(completion, row)
    replies: Sequence[str] | None = None
    while True:
        try:
            questions = asking.send(replies)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            outcome: Scored | Unscorable = end.value
            return outcome
        replies = await _all(endpoint, questions, spending)


async def _all(endpoint: Endpoint, questions: Sequence[Question], spending: Spending) -> list[str]:
    """Return all replies; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(endpoint.reply(each, spending)) for each in questions]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
