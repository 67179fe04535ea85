"""Banyan's quick start against TRL's GRPOTrainer on this machine: seconds a step, and seconds to an accuracy.

Light to import: its rival runs in an environment that holds little of ours.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness.table import Result


def run() -> "Result":
    """The table."""
    from bench.trl import compare

    return compare.run()
