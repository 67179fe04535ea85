"""Scores of judges: who may ask, what was asked before, and how an endpoint's faults end.

A fault of the endpoint, of the network or of a budget is never a reward: such a completion has no
score, with the reason.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from banyan.digest import blake, packed
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from banyan.plugins.ask import Asker
from services.verifier.judging.conduct import asked
from services.verifier.judging.endpoint import Endpoint
from services.verifier.judging.spending import Spending
from services.verifier.sandbox.allowed import grants
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.worker import ScorerSpec

_MOST_SPENDINGS = 4096  # runs and judges that are counted
_MOST_JUDGES = 64  # that scores are kept of

K = TypeVar("K")
V = TypeVar("V")


class Judging:
    """Asks endpoints for the scorers that recipes let do so.

    network: whether this verifier lets any scorer use the network.
    secrets: names of environment variables that recipes may name.
    width: requests at once.
    """

    def __init__(
        self, *, network: bool = False, secrets: Collection[str] = (), width: int = 16
    ) -> None:
        self._network, self._secrets = network, frozenset(secrets)
        self._slots = FairSlots(width)
        self._away: set[str] = set()
        self._kept: OrderedDict[bytes, OrderedDict[bytes, Scored]] = OrderedDict()
        self._under_way: dict[tuple[str, bytes], asyncio.Task[Scored | Unscorable]] = {}
        self._spent: OrderedDict[tuple[str, bytes], Spending] = OrderedDict()

    async def score(
        self, spec: ScorerSpec, asker: Asker, completion: str, row: Mapping[str, Any], run_id: str
    ) -> Scored | Unscorable:
        """Return the score of a completion; equal ones are asked for once.

        Raise InvalidInput if the recipe or this verifier does not let the scorer ask.
        """
        key = self.key_of(spec)
        question = _digest(completion, row)
        kept = _newest(self._kept, spec.key, OrderedDict, _MOST_JUDGES)
        if question in kept:
            kept.move_to_end(question)
            return kept[question]
        at = run_id, blake(spec.key, question)
        task = self._under_way.get(at)
        if task is None:
            endpoint = Endpoint(asker, key, self._slots, self._away)
            spending = _newest(
                self._spent, (run_id, spec.key), lambda: Spending(run_id), _MOST_SPENDINGS
            )
            task = asyncio.create_task(asked(asker, endpoint, completion, row, spending))
            self._under_way[at] = task
            task.add_done_callback(lambda _: self._under_way.pop(at, None))
        outcome = await asyncio.shield(task)
        if isinstance(outcome, Scored) and asker.cache:
            kept[question] = outcome
            while len(kept) > asker.cache:
                kept.popitem(last=False)
        return outcome

    def key_of(self, spec: ScorerSpec) -> str:
        """Return what opens the scorer's endpoint; empty if its recipe names nothing.

        Raise InvalidInput if the scorer may not ask.
        """
        if not spec.network:
            raise InvalidInput(
                f"scorer {spec.name!r} asks an address: set network: true beside its name in filter"
            )
        grants.check_network(spec.label, asked=spec.network, allowed=self._network)
        if len(spec.secrets) > 1:
            raise InvalidInput(f"scorer {spec.name!r} takes one secret, got {len(spec.secrets)}")
        given = grants.secrets(spec.label, spec.secrets, self._secrets)
        key = next(iter(given.values()), "")
        if not (key.isascii() and key.isprintable()):
            raise InvalidInput(f"the secret {spec.secrets[0]} holds characters that no header can")
        return key

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _newest(kept: OrderedDict[K, V], key: K, made: Callable[[], V], most: int) -> V:
    """Return the value of a key, made if it lacks, and forget the one unused for longest."""
    value = kept.setdefault(key, made())
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
    return value


def _digest(completion: str, row: Mapping[str, Any]) -> bytes:
    text = completion.encode("utf-8", "surrogatepass")
    return blake(packed(text), json.dumps(row, sort_keys=True, default=str).encode())
