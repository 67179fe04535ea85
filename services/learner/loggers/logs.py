"""The loggers of a run, fed by the learner: steps once trained, evaluations once they are over.

Loggers that ask for them get samples of the completions of a step, too. Their texts are those of
segments; a tokenizer is needed where a path leaves a segment before its end.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from banyan import loggers
from banyan.errors import BanyanError
from banyan.loggers.completions import wish_of
from banyan.progress.run_status import moment
from banyan.recipe import Recipe
from banyan.segment import IntTokens
from banyan.v1 import runstore_service_pb2, tree_pb2
from services.learner.data import completions
from services.learner.data.prepare import Lesson
from services.learner.loggers.feed import Feeds

log = logging.getLogger(__name__)

POLL_S = 10.0  # between reads of the evaluations


class Source(Protocol):
    """The tree store, as loggers need it. All calls raise BanyanError."""

    async def evaluations(self) -> tuple[int, list[runstore_service_pb2.EvalProgress]]:
        """Return the newest step, and the progress of the run's evaluations."""
        ...

    async def tokenizer(self) -> bytes:
        """Return the tokenizer.json of the run's model; empty without one."""
        ...


class Logs:
    """Feeds the loggers of a run from the event loop; without loggers it does nothing."""

    def __init__(self, run_id: str, recipe: Recipe, folder: Path, store: Source) -> None:
        built = loggers.built(recipe)
        self._run_id = run_id
        self._feeds = Feeds(run_id, recipe.model_dump(mode="json"), built, folder / "loggers")
        self._store, self._logged = store, set[str]()
        self._poller = asyncio.create_task(self._poll_forever()) if built else None
        self._samples = any(wish_of(name, logger).count for name, logger in built.items())
        self._decode: completions.Decode | None = None
        self._complained = False

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Feed a step's metrics; returns at once."""
        self._feeds.step(step, metrics)

    def batch(self, step: int, lesson: Lesson, trees: Sequence[tree_pb2.Tree]) -> None:
        """Feed samples of the completions that a step trained on, to loggers that want them.

        Returns at once. No failure of it ends the run: it is logged once.

        trees: stored trees of the batch's own groups
        """
        if not self._samples:
            return
        by_id = {tree.spec.tree_id: tree for tree in trees}
        try:
            self._feeds.completions(
                step,
                lambda count: completions.drawn(
                    lesson.credits,
                    by_id,
                    run_id=self._run_id,
                    step=step,
                    count=count,
                    decode=self._decode,
                ),
            )
        except Exception as error:  # a foreign tokenizer may raise anything
            if not self._complained:
                self._complained = True
                log.warning(
                    "step %d: no samples of completions, and this is said once: %s: %s",
                    step,
                    type(error).__name__,
                    error,
                )

    async def close(self) -> None:
        """Feed the last evaluations, and give loggers a while to write.

        Failures are logged and not raised: they must not hide why the learner ends.
        """
        if self._poller is None:
            return
        self._poller.cancel()
        errors: list[BaseException | None] = []
        errors += await asyncio.gather(self._poller, return_exceptions=True)
        errors += await asyncio.gather(self._poll(), return_exceptions=True)
        closing = asyncio.to_thread(self._feeds.close)
        errors += await asyncio.gather(closing, return_exceptions=True)
        for error in errors:
            if isinstance(error, Exception):
                log.error("loggers: %s: %s", type(error).__name__, error, exc_info=error)

    async def _poll_forever(self) -> None:
        if self._samples:
            await self._read_tokenizer()
        while True:
            await self._poll()
            await asyncio.sleep(POLL_S)

    async def _read_tokenizer(self) -> None:
        """Read the tokenizer; without one the samples say which part of a segment they hold."""
        try:
            data = await self._store.tokenizer()
            if data:
                self._decode = await asyncio.to_thread(_decoder, data)
        except Exception as error:  # a foreign tokenizer may raise anything
            log.warning(
                "samples of completions: the run's tokenizer cannot be used: %s: %s",
                type(error).__name__,
                error,
            )

    async def _poll(self) -> None:
        try:
            newest, evaluations = await self._store.evaluations()
        except BanyanError as error:  # the next poll asks again
            log.debug("evaluations are not known: %s", error)
            return
        for progress in evaluations:
            over = progress.scored and progress.done >= progress.groups
            step = moment(progress.label, newest)
            if over and step is not None and progress.label not in self._logged:
                self._logged.add(progress.label)
                self._feeds.evaluation(progress.label, step, measured(progress))


def _decoder(data: bytes) -> completions.Decode:
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_str(data.decode())

    def decode(tokens_T: IntTokens) -> str:
        return str(tokenizer.decode(tokens_T.tolist(), skip_special_tokens=True))

    return decode


def measured(progress: runstore_service_pb2.EvalProgress) -> dict[str, float]:
    """Return the metrics of an evaluation that is over."""
    kind, scored = progress.label.rpartition("-")[2], progress.scored
    return {
        f"eval_{kind}_reward": progress.reward_sum / scored,
        f"eval_{kind}_right": progress.correct / scored,
        f"eval_{kind}_answers": float(scored),
        **_voted(progress),
    }


def _voted(progress: runstore_service_pb2.EvalProgress) -> dict[str, float]:
    """Return the metrics of votes, beside those of a leaf of the same rows; none without votes."""
    metrics: dict[str, float] = {}
    if progress.HasField("votes"):
        votes = progress.votes
        metrics |= _of_votes("majority", votes)
        metrics["eval_voted_leaf_reward"] = votes.leaf_value_sum / votes.rows
        metrics["eval_voted_leaf_right"] = votes.leaf_correct_sum / votes.rows
    if progress.HasField("head_votes"):
        metrics |= _of_votes("head", progress.head_votes)
    return metrics


def _of_votes(name: str, votes: runstore_service_pb2.Votes) -> dict[str, float]:
    return {
        f"eval_voted_{name}_reward": votes.value_sum / votes.rows,
        f"eval_voted_{name}_right": votes.correct / votes.rows,
        f"eval_voted_{name}_rows": float(votes.rows),
    }
