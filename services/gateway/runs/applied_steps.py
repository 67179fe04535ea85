"""Whether any step of a run changed its weights: a run in which none did has taught nothing, however many it made. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from banyan.v1 import runstore_service_pb2 as runs


@dataclass(frozen=True, slots=True)
class Applied:
    """Whether any policy published so far changed the weights. Only in memory: a restart reads them again from the first.

    number: of the newest policy that was looked at. metrics: of its step.
    """

    any: bool = False
    number: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def after(self, policies: Iterable[runs.StoredPolicy]) -> "Applied":
        """Return what is known with the policies that follow, oldest first."""
        known = self
        for stored in policies:
            said = stored.published.metrics
            known = Applied(
                known.any or said.get("applied", 0.0) > 0.0,
                stored.number,
                dict(said) or known.metrics,
            )
        return known

    def missing(self, batches: int) -> str:
        """Say why nothing was applied in so many batches; empty where something was, or no step was looked at."""
        if self.any or not self.metrics:
            return ""
        return f"none of the {batches} steps changed the weights: {self._why()}"

    def _why(self) -> str:
        said = self.metrics
        if said.get("not_finite"):
            return "their losses or gradients were not finite; lower optimise.learning_rate, or look at the rewards"
        if said.get("zero_variance_share", 0.0) >= 1.0:
            return (
                f"within every group all rewards were equal (mean {said.get('reward', 0.0):.4g} at the last step), and an "
                "advantage compares rewards of a group; take prompts that are neither too easy nor too hard, more trees a "
                "group, or a scorer that tells answers apart"
            )
        return (
            "no group had two scored leaves with different credit; give groups more leaves (generate.trees, or the width in "
            "generate.settings) where they have one; `banyan runs show` has the metrics of each step"
        )
