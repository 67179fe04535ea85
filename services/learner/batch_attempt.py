"""A learner's attempt at a batch: what the batch does to the learner is noted before the learner ends of it.

The store sets a batch aside on which two learners failed (ADR 051). A fault of the store, or of the machinery around, says
nothing of the batch; neither does a learner that is killed, as nobody can tell why.
"""

import logging
from collections.abc import Sequence
from types import TracebackType

from banyan.errors import BanyanError, InvalidInput
from services.learner.ports import Store, StoredBatch

log = logging.getLogger(__name__)
IN_A_ROW = 3  # batches that are set aside, after which the fault is no batch's
UNSTUDIED = "unstudied"  # in the summary of a batch that was committed for its failure to be noted


class Attempt:
    """Entered before a batch is studied, left when its step is taken. `committed`: the store holds the batch."""

    def __init__(self, store: Store, batch: StoredBatch, epoch: int, committed: bool) -> None:
        self._store, self._batch, self._epoch, self.committed = store, batch, epoch, committed

    async def __aenter__(self) -> "Attempt":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Notes the error, which goes on: after it the model in memory is not to be trusted."""
        if error is None or not of_the_batch(error):
            return
        cause = f"{type(error).__name__}: {error}"
        try:
            if (
                not self.committed
            ):  # the next learner would choose the same groups, and end of them again
                batch = self._batch
                await self._store.commit(
                    batch.ordinal,
                    self._epoch,
                    batch.group_ids,
                    {UNSTUDIED: cause[:500]},
                    batch.replayed,
                )
            failures = await self._store.note_failure(self._batch.ordinal, self._epoch, cause)
            log.error(
                "batch %d ends this learner, as it did %d before: %s",
                self._batch.ordinal,
                failures - 1,
                cause,
            )
        except BanyanError as told:
            log.error(
                "batch %d ends this learner, and the store was not told: %s",
                self._batch.ordinal,
                told,
            )


def of_the_batch(error: BaseException) -> bool:
    """Whether an error says something of the batch: all that computing raised, and what could not be read of its trees."""
    if isinstance(error, BanyanError):
        return isinstance(error, InvalidInput)
    return isinstance(error, Exception) and not isinstance(error, ConnectionError | TimeoutError)


def refuse_all_aside(batches: Sequence[StoredBatch | None]) -> None:
    """Ends a run whose newest `IN_A_ROW` batches were all set aside. Raises InvalidInput: the next would end so, too."""
    aside = [batch for batch in batches if batch is not None and batch.set_aside]
    if len(aside) >= IN_A_ROW:
        raise InvalidInput(
            f"batches {aside[0].ordinal} to {aside[-1].ordinal} were set aside one after another, so the fault is"
            f" not theirs: {aside[-1].set_aside}"
        )
