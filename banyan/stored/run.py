"""A stored run: its facts, metrics, evaluations, trees and checkpoint."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.errors import InvalidInput, NotFound
from banyan.progress import run_status
from banyan.recipe import Recipe
from banyan.runtime import run_files
from banyan.stored import pages
from banyan.stored.evaluation import Evaluation
from banyan.stored.plain import name_of, when
from banyan.stored.segment import Policy
from banyan.stored.summary import TreeSummary
from banyan.stored.tree import Tree
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

if TYPE_CHECKING:
    import pandas

    from banyan.stored.store import Store


@dataclass(frozen=True, slots=True)
class Member:
    """A rollout node of a run.

    joined: it came by `banyan join`
    present: it has not left, and was heard of within the last 10 s
    trees: number of trees that it grew
    """

    node: str
    host: str
    joined: bool
    present: bool
    seen: datetime.datetime | None
    trees: int


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run as it was when it was read; `refreshed` reads it again.

    state: PENDING to SUCCEEDED, FAILED, CANCELLED or PAUSED, as docs/architecture.md has them
    cause: reason of failure or cancellation; None without
    step: optimizer steps done
    folder: folder of its checkpoints and logs, on the host that runs it; None in old stores
    """

    run_id: str
    state: str
    cause: str | None
    step: int
    created: datetime.datetime | None
    ended: datetime.datetime | None
    folder: Path | None
    recipe_json: str
    _store: "Store"

    @classmethod
    def of(cls, message: rs.Run, store: "Store") -> "Run":
        """Return the run of a message."""
        return cls(
            run_id=message.run_id,
            state=name_of(rs.RunState, message.state),
            cause=message.cause or None,
            step=message.step,
            created=when(message.created_unix_ms),
            ended=when(message.ended_unix_ms),
            folder=Path(message.folder) if message.folder else None,
            recipe_json=message.recipe_json,
            _store=store,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.run_id == other.run_id

    def __hash__(self) -> int:
        return hash(self.run_id)

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.state} at step {self.step}>"

    @property
    def over(self) -> bool:
        """True if it SUCCEEDED, FAILED or was CANCELLED."""
        return self.state in ("SUCCEEDED", "FAILED", "CANCELLED")

    @cached_property
    def recipe(self) -> Recipe:
        """Recipe of the run, with every default."""
        return Recipe.model_validate_json(self.recipe_json, strict=False)

    @property
    def checkpoint(self) -> Path:
        """Folder of the newest complete checkpoint. Raises NotFound if there is none."""
        if self.folder is None:
            raise NotFound(f"run {self.run_id} has no folder, so no checkpoint is known")
        return run_files.newest_checkpoint(self.folder)

    def refreshed(self) -> "Run":
        """Return the run as it is now."""
        return self._store.run(self.run_id)

    # -- numbers --

    def metrics(self) -> list[dict[str, Any]]:
        """Return a row of metrics by name for each trained step, with `step`, oldest first.

        A number that is not finite is None. docs/metrics.md says what they mean.
        """
        return plain_data.metrics(self._store.client.policies(self.run_id))

    def frame(self) -> "pandas.DataFrame":
        """Return `metrics` as a data frame with the step as index.

        Raises InvalidInput if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InvalidInput(
                "run.frame() needs pandas: pip install pandas; run.metrics() gives the same rows as"
                " plain dictionaries"
            ) from None
        rows = self.metrics()
        frame = pandas.DataFrame(rows, columns=None if rows else ["step"])
        return frame.set_index("step")

    def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the results on the held-out rows, by step, and by kind where it is the same."""
        progress = self._store.client.progress(self.run_id)
        found = sorted(progress.evals, key=lambda e: run_status.order(e.label))
        return tuple(Evaluation.of(message, progress.step) for message in found)

    def progress(self) -> dict[str, Any]:
        """Return counts of groups, leaves and tokens, as `banyan runs show --json` has them."""
        return plain_data.progress(self._store.client.progress(self.run_id))

    def policies(self) -> tuple[Policy, ...]:
        """Return the policies of the run, oldest first, without those that a rewind abandoned."""
        stored = self._store.client.policies(self.run_id)
        found = (Policy.of(policy.published.policy) for policy in stored)
        return tuple(policy for policy in found if policy is not None)

    def members(self) -> tuple[Member, ...]:
        """Return the rollout nodes of the run."""
        return tuple(
            Member(
                node=member.node_id,
                host=member.host,
                joined=member.joined,
                present=member.present,
                seen=when(member.seen_unix_ms),
                trees=member.trees,
            )
            for member in self._store.client.members(self.run_id)
        )

    # -- trees --

    def trees(
        self,
        *,
        purpose: str | None = "TRAIN",
        state: str | None = None,
        label: str = "",
        step: int | None = None,
    ) -> Iterator[TreeSummary]:
        """Yield the run's trees without their segments, newest first.

        They come in pages, so a run of any length needs the memory of one page.

        purpose: TRAIN, EVAL, or None for both
        state: only trees of this state, such as CONSUMED
        label: only trees of this evaluation; then `purpose` is EVAL
        step: only trees that this training step used, replayed ones included

        Raises InvalidInput for an unknown name, or a step below 1.
        """
        filters = pages.filters(self.run_id, "EVAL" if label else purpose, state, label, step)
        for message in pages.summaries(self._store.client, filters):
            yield TreeSummary.of(message, self._store)

    def whole_trees(
        self,
        *,
        purpose: str | None = "TRAIN",
        state: str | None = None,
        label: str = "",
        step: int | None = None,
    ) -> Iterator[Tree]:
        """Yield the run's trees with their segments, newest first, one at a time in memory.

        The arguments are those of `trees`.
        """
        for summary in self.trees(purpose=purpose, state=state, label=label, step=step):
            yield summary.read()
