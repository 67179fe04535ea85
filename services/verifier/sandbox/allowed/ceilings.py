"""The most that a recipe may ask for a scorer in a verifier; the operator sets it."""

from dataclasses import dataclass

from banyan.errors import InvalidInput
from services.verifier.sandbox.worker import ScorerSpec

# Each limit of a spec with the setting of the verifier that bounds it.
_SETTINGS = {
    "deadline_s": "BANYAN_SCORE_TIMEOUT_MOST_S",
    "memory_mb": "BANYAN_SCORE_MEMORY_MOST_MB",
    "concurrency": "BANYAN_CHILDREN_MOST",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bounds of the limits that a recipe names.

    deadline_s: wall-clock time of a score.
    memory_mb: memory of a score, beyond that of its warm child.
    concurrency: scores of a scorer at once.
    """

    deadline_s: float = 120.0
    memory_mb: int = 4096
    concurrency: int = 16

    def check(self, spec: ScorerSpec) -> None:
        """Raise InvalidInput if a spec asks for more."""
        for name, setting in _SETTINGS.items():
            asked, most = getattr(spec, name), getattr(self, name)
            if asked is not None and asked > most:
                raise InvalidInput(
                    f"scorer {spec.name!r} asks for {name} {asked:g}, and this verifier allows"
                    f" {most:g}; ask for less in the recipe, or start the verifier with"
                    f" {setting}={asked:g}"
                )
