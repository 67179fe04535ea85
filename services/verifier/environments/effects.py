"""Effects outside: each is begun once for its action; one without an answer stays unknown."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from banyan.environments.external import idempotency_key
from banyan.environments.receipts import Receipt
from banyan.errors import BanyanError
from banyan.reasons import Reason
from banyan.wire.receipts import to_wire
from services.verifier.environments.ports import Store
from services.verifier.environments.unanswerable import Unanswerable

log = logging.getLogger(__name__)


class ExternalEffect:
    """The effect outside that one action may have.

    store: keeps that it began, and its answer
    tree_id: the action's tree
    epoch: claim under which it is asked for
    action: id of the segment that the action ends with
    """

    def __init__(self, store: Store, tree_id: bytes, epoch: int, action: bytes) -> None:
        self._store, self._tree_id, self._epoch = store, tree_id, epoch
        self._action, self._begun = action, False

    async def begin(self, tool: str) -> str:
        """Return the idempotency key once it is durable that the effect begins.

        Raises Unanswerable if it was begun before, by whomever.
        """
        if not await self._store.begin_effect(self._tree_id, self._epoch, self._action, tool):
            raise self.unknown(f"tool {tool} may have been called for it before")
        self._begun = True
        return idempotency_key(self._tree_id, self._action)

    def unknown(self, message: str) -> Unanswerable:
        """Return the end of an action of whose effect nobody knows what became."""
        return Unanswerable(self._action, Reason.EFFECT_UNKNOWN, message)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn what is raised in the block after the effect began into Unanswerable."""
        try:
            yield
        except (BanyanError, Unanswerable) as error:
            if self._begun:
                raise self.unknown(f"its effect began, and then: {error}") from error
            raise

    async def end(self, receipt: Receipt, text: str) -> None:
        """Make the answer durable, if the effect began.

        The node publishes the answer, too, so a store that is away costs it nothing.
        """
        if not self._begun:
            return
        try:
            await self._store.end_effect(self._tree_id, self._action, to_wire(receipt), text)
        except BanyanError as error:
            log.warning(
                "the answer to action %s is not kept beside its tree: %s",
                self._action.hex()[:12],
                error,
            )
