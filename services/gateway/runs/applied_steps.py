"""The check that some step of a run changed its weights: else the run has taught nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from banyan.v1 import runstore_service_pb2 as runs
from services.gateway.domain.ports import Store


@dataclass(frozen=True, slots=True)
class Applied:
    """Knowledge about the policies read so far.

    Only in memory: a restart reads them again from the first.

    any: True once a step changed the weights.
    number: the newest policy read.
    metrics: metrics of its step, by name.
    """

    any: bool = False
    number: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def after(self, policies: Iterable[runs.StoredPolicy]) -> "Applied":
        """Return the knowledge after further policies, oldest first."""
        known = self
        for stored in policies:
            metrics = stored.published.metrics
            known = Applied(
                any=known.any or metrics.get("applied", 0.0) > 0.0,
                number=stored.number,
                metrics=dict(metrics) or known.metrics,
            )
        return known

    def missing(self, batches: int, environment: str = "") -> str:
        """Return why none of `batches` steps changed the weights; empty if that is not known.

        environment: name of the one that answers the paths' actions, if any.
        """
        if self.any or not self.metrics:
            return ""
        return f"none of the {batches} steps changed the weights: {self._why(environment)}"

    def _why(self, environment: str) -> str:
        metrics = self.metrics
        if metrics.get("not_finite"):
            return (
                "their losses or gradients were not finite; lower optimise.learning_rate,"
                " or look at the rewards"
            )
        equal = metrics.get("zero_variance_share", 0.0) >= 1.0
        if environment and equal and "turns_per_path" not in metrics:
            return (
                f"no path made an action that environment {environment} could answer: the model"
                " never ended one with its mark; show a worked call in the prompt, or warm start"
                " the model with banyan sft"
            )
        if equal:
            return (
                f"within every group all rewards were equal (mean {metrics.get('reward', 0.0):.4g}"
                " at the last step), and an advantage compares rewards of a group; take prompts"
                " that are neither too easy nor too hard, more trees a group, or a scorer that"
                " tells answers apart"
            )
        return (
            "no group had two scored leaves with different credit; give groups more leaves"
            " (generate.trees, or the width in generate.settings) where they have one;"
            " `banyan runs show` has the metrics of each step"
        )


async def read_applied(store: Store, run_id: str, known: Applied) -> Applied:
    """Read the policies after the known ones, until one changed the weights or none is left."""
    while not known.any:
        page = await store.read_policies(run_id, after=known.number)
        if not page:
            break
        known = known.after(page)
    return known
