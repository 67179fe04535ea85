"""Banyan's arithmetic recipe against TRL's GRPOTrainer on this machine.

Figures are seconds a step, and seconds to an accuracy. The package is light to import: its rival
runs in an environment that holds little of ours.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness.table import Result


def run() -> "Result":
    """Return the table."""
    from bench.trl import compare

    return compare.run()
