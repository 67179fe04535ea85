"""Scorers of leaves."""

from banyan.recipe.part import Name, Part, Settings


class Filter(Part):
    """A scorer of leaves."""

    LATER = frozenset({"group"})

    name: Name
    """Scorer: a registered name or module:function."""
    settings: Settings = {}
    """Settings of the scorer."""
    group: bool = False
    """module:function only: it scores all completions of a group together, `def reward(completions:
    list[str], **row)`."""
