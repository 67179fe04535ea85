"""Duration of the scripted engine's steps, to rehearse a run's timing without a model.

Example: with {latency_s: 0.02, prefill_s: 0.0005, branch_s: 0.0002} a step that prefills a prompt
of 40 tokens and then decodes 64 branches takes 20 + 20 + 12.8 ms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from banyan.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of the parts of a step.

    latency_s: of the step as such (reading the weights).
    prefill_s: of each prefilled token.
    branch_s: of each decoded branch.
    """

    latency_s: float = 0.0
    prefill_s: float = 0.0
    branch_s: float = 0.0

    def step(self, prefilled: int, branches: int) -> float:
        """Return the seconds of one step."""
        return self.latency_s + self.prefill_s * prefilled + self.branch_s * branches


AT_ONCE = Latency()
NAMES = tuple(f.name for f in fields(Latency))


def read(settings: Mapping[str, Any]) -> Latency:
    """Read engine_settings; missing values are 0. Raise InvalidInput for bad ones."""
    for name in NAMES:
        value = settings.get(name, 0.0)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not 0.0 <= value < float("inf")
        ):
            raise InvalidInput(
                f"engine scripted: {name} must be seconds of at least 0, got {value!r}"
            )
    return Latency(**{name: float(settings[name]) for name in NAMES if name in settings})
