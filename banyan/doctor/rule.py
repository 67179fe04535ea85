"""Entry of the diagnostic index, and the finding that it makes."""

from dataclasses import dataclass

from banyan.doctor.checks import Check, Found


@dataclass(frozen=True, slots=True)
class Lever:
    """Setting that may cure a symptom.

    setting: argument of `--set`, with a value to begin with
    why: its effect on the symptom
    """

    setting: str
    why: str

    @property
    def key(self) -> str:
        """Key of the recipe."""
        return self.setting.partition("=")[0]


@dataclass(frozen=True, slots=True)
class DiagnosticRule:
    """Entry of the index."""

    name: str
    symptom: str
    module: str
    check: Check
    levers: tuple[Lever, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Rule that holds, with its evidence."""

    rule: DiagnosticRule
    evidence: Found
