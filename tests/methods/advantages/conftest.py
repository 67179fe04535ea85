"""Estimators are tested on the learner's hand-made trees, too."""

from tests.learner.conftest import forest

__all__ = ["forest"]
