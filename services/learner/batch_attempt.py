"""The attempt at a batch: a failure that the batch causes is recorded before the learner ends.

The store sets a batch aside after the second learner that failed on it (ADR 051). A fault of the
store, or of the machinery around, is not the batch's; neither is a killed learner, as its cause is
unknown.
"""

import logging
from collections.abc import Sequence
from types import TracebackType

from banyan.errors import BanyanError, InvalidInput, with_kind
from services.learner.ports import Store, StoredBatch

log = logging.getLogger(__name__)
IN_A_ROW = 3  # consecutive batches set aside, after which the fault is no batch's
UNSTUDIED = "unstudied"  # summary key of a batch that was committed to record its failure


class Attempt:
    """A context that begins before a batch is prepared and ends after its step.

    `committed`: whether the store has the batch
    """

    def __init__(self, store: Store, batch: StoredBatch, epoch: int, committed: bool) -> None:
        self._store, self._batch, self._epoch = store, batch, epoch
        self.committed = committed

    async def __aenter__(self) -> "Attempt":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record the error, which propagates: after it the model in memory is not to be trusted."""
        if error is None or not of_the_batch(error):
            return
        batch = self._batch
        cause = with_kind(error)
        try:
            if not self.committed:
                # Else the next learner would choose the same groups, and fail on them again.
                unstudied = {UNSTUDIED: cause[:500]}
                await self._store.commit(
                    batch.ordinal, self._epoch, batch.group_ids, unstudied, batch.replayed
                )
            failures = await self._store.note_failure(batch.ordinal, self._epoch, cause)
        except BanyanError as failure:
            log.error(
                "batch %d failed this learner, and the failure could not be recorded: %s",
                batch.ordinal,
                failure,
            )
        else:
            log.error(
                "batch %d failed this learner (%d earlier failures): %s",
                batch.ordinal,
                failures - 1,
                cause,
            )


def of_the_batch(error: BaseException) -> bool:
    """Tell whether the batch may cause an error.

    It causes the errors of computing, and those of trees that cannot be decoded.
    """
    if isinstance(error, BanyanError):
        return isinstance(error, InvalidInput)
    return isinstance(error, Exception) and not isinstance(error, ConnectionError | TimeoutError)


def refuse_all_aside(batches: Sequence[StoredBatch | None]) -> None:
    """Raise InvalidInput, which ends the run, if its newest `IN_A_ROW` batches were set aside."""
    aside = [batch for batch in batches if batch is not None and batch.set_aside]
    if len(aside) >= IN_A_ROW:
        first, last = aside[0].ordinal, aside[-1].ordinal
        raise InvalidInput(
            f"batches {first} to {last} were set aside one after another, so the fault is not"
            f" theirs: {aside[-1].set_aside}"
        )
