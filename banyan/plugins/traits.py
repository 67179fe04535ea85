"""Traits that plugins declare as attributes of their class; an absent one has its default.

What reads a trait reads it here, so these fields are all that a plugin can declare.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from banyan.errors import InvalidInput, users_code, with_kind
from banyan.facts import INSIDE, STEPS

MOST_LEAVES = 4096  # of a tree
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """Traits of a tree policy.

    needs_scores: asked again when its marked leaves have their rewards, which the view then holds:
        the weighted mean of the scorers' values, None if unscorable or late
    needs_entropy: reads entropies of segments; engines without them are refused
    needs_room: grows in steps of the growth budget: `start` leaves at once, then as many in all as
        `room.max_leaves` allows (None before control's first decision), `most` at most. It is asked
        again with each new budget, and is done only when the budget is final, which it also becomes
        after too long a silence of control.
    needs_head: requires a learned head
    truncates: samples from a truncated distribution, which a recipe must allow
    forks_inside: paths begin inside segments that have ended, so that their KV is worth its memory
    acts: has the actions of its paths answered, so that a recipe may name an environment
    gives: the facts of banyan.facts that its trees have, for estimators that need them
    width: whole number of leaves that a tree is expected to have, from 1 to MOST_LEAVES; decides
        how many trees a node claims
    """

    needs_scores: bool = False
    needs_entropy: bool = False
    needs_room: bool = False
    needs_head: bool = False
    truncates: bool = False
    forks_inside: bool = False
    acts: bool = False
    gives: Collection[str] = ()
    width: int = 1


@dataclass(frozen=True, slots=True)
class EstimatorTraits:
    """Traits of an estimator.

    needs: other facts of a tree that it requires (banyan.facts: STEPS, INSIDE, attribute, part). A
        recipe is refused if neither the tree policy's `gives` nor the `parts` of a scorer provide
        them.
    needs_entropy: reads the entropies of sampled tokens
    needs_logprobs: reads the behaviour log-probs of sampled tokens
    by_steps: rewards of places inside a path count if present, so a path with an unscorable place
        takes no part; implied by a need of STEPS or INSIDE
    alone: a leaf without another of its group teaches; else a recipe that names such an estimator
        and grows one leaf of a prompt is refused
    """

    needs: Collection[str] = ()
    needs_entropy: bool = False
    needs_logprobs: bool = False
    by_steps: bool = False
    alone: bool = False

    @property
    def counts_places(self) -> bool:
        """True if rewards of places inside a path count."""
        return self.by_steps or STEPS in self.needs or INSIDE in self.needs


@dataclass(frozen=True, slots=True)
class ScorerTraits:
    """Traits of a scorer.

    needs_transcript: called with the path's turns, too: `score(completion, row, transcript)`, or
        `score_group(completions, row, transcripts)`
    needs_heads: of groups only, called with the head's last score on each path:
        `score_group(completions, row, heads)`
    compares: form of the answers that it compares, a name of methods.filter.answers; empty if
        equal answers have no text in common. Where it is `number`, its attribute `take` says which
        number counts, `only` or `last`.
    """

    needs_transcript: bool = False
    needs_heads: bool = False
    compares: str = ""


def of_policy(policy: object) -> PolicyTraits:
    """Return the traits of a tree policy."""
    traits = _read(PolicyTraits, policy)
    whole = isinstance(traits.width, int) and traits.width >= 1
    return traits if whole else dataclasses.replace(traits, width=1)


def of_estimator(estimator: object) -> EstimatorTraits:
    """Return the traits of an estimator."""
    return _read(EstimatorTraits, estimator)


def of_scorer(scorer: object) -> ScorerTraits:
    """Return the traits of a scorer."""
    return _read(ScorerTraits, scorer)


def needs(kind: type) -> frozenset[str]:
    """Return the names of the traits of a kind by which a plugin asks for something."""
    return frozenset(
        each.name for each in dataclasses.fields(kind) if each.name.startswith("needs_")
    )


def attribute(plugin: object, name: str, default: object = None) -> Any:
    """Return an attribute of a plugin, or the default if it has none.

    Raises InvalidInput if reading it raises: a property or `__getattr__` is the plugin's own code.
    """
    with users_code(lambda error: f"{label(plugin)}: reading {name} raised {with_kind(error)}"):
        return getattr(plugin, name, default)


def label(plugin: object) -> str:
    """Return the kind of a plugin as messages name it."""
    return f"plugin {type(plugin).__module__}:{type(plugin).__qualname__}"


def _read(kind: type[T], plugin: object) -> T:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    defaults = {each.name: each.default for each in fields}
    values = {name: attribute(plugin, name, default) for name, default in defaults.items()}
    for name, default in defaults.items():
        if isinstance(default, bool) and not _is_truth(values[name]):
            wanted = "true or false"
        elif isinstance(default, tuple) and not _holds_names(values[name]):
            wanted = "a tuple of names"
        else:
            continue
        raise InvalidInput(f"{label(plugin)} has {name} {values[name]!r:.100}; it must be {wanted}")
    return kind(**values)


def _is_truth(value: object) -> bool:
    """Return True for a truth value of Python or numpy, which no plugin has to import for that."""
    return isinstance(value, bool) or (
        type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    )


def _holds_names(value: object) -> bool:
    return isinstance(value, tuple | list | set | frozenset) and all(
        isinstance(name, str) for name in value
    )
