"""latr: a greedy lookahead tree of distinct branches, then sampling.

Paper: LATR, arXiv 2510.24302
Formula: c opens a branch iff p_c > τ_abs and p_1 − p_c < τ_rel
Left out: one tree phase for all prompts of a step; here each tree ends its own

All branches advance together from the prompt by the likeliest token. At a token whose runner-up c
has p_c > τ_abs and p_1 − p_c < τ_rel (untempered, strictly) a branch opens with c forced, while the
group has fewer than its n branches. When a branch is r tokens old it is compared with its parent's
r tokens over the same places; if they are too alike, it is deleted with all that grew from it. The
tree phase ends when the group is full and no branch is younger than the last r, or at
`force_return` tokens; then ordinary sampling finishes every branch from its place, and copies of
the first one that still runs fill the slots that are left (copies of an ended one would be the same
leaf; if all ended, fresh samples do).

As published the phase is one for all prompts of a step: it ends for all of them when their branches
together, a finished group counting n, are round(n · prompts · (0.98 − 0.05 · step/max_new)), and
slow groups are then filled with copies. Here no tree waits for another, so each ends by its own
branches and leaves none of its own unopened.

round(η·n) leaves come from the tree, η by the step before the tree was opened; the others are
sampled from the prompt. A tree of one leaf needs no lookahead: it is an ordinary sample.

The greedy tokens are sampled `chunk` at a time and replayed token by token, so the excess of a
chunk is dropped and the tree does not depend on `chunk`.

Greedy tokens are of a distribution with one token: Sampling(temperature=0, top_k=1), so their
log-prob is the policy's at temperature 1 and their sampled_logprob 0. They are trained on, as
published, though they have no policy gradient: the recipe must have `allow_truncated_sampling:
true`. Runner-ups are FORCED: context only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from banyan.plugins import checks
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.latr.growth import Lookahead
from methods.generate.latr.lookahead import ForkRule, Likeness

_OPTIONAL = ("tau_abs", "tau_rel", "edit_distance", "suffix", "rouge")


@dataclass(frozen=True, slots=True)
class _Preset:
    tau_abs: float
    tau_rel: float
    edit_distance: float
    suffix: float
    rouge: float
    force_return: int
    eta: Mapping[int, float]


PRESETS = {
    "math": _Preset(
        tau_abs=0.15,
        tau_rel=0.25,
        edit_distance=0.0,
        suffix=0.2,
        rouge=0.5,
        force_return=1024,
        eta={0: 1.0, 100: 0.75, 200: 0.5, 300: 0.25},
    ),
    "countdown": _Preset(
        tau_abs=0.25,
        tau_rel=0.15,
        edit_distance=0.4,
        suffix=1.0,
        rouge=1.0,
        force_return=512,
        eta={0: 1.0, 10: 0.75, 20: 0.5, 80: 0.25, 200: 0.0},
    ),
}


@dataclass(frozen=True)
class Latr(Growing):
    """Lookahead tree, then sampling."""

    truncates: ClassVar[bool] = True  # greedy sampling, see the module's head
    toy: ClassVar[str] = "reconverging"
    forks_inside: ClassVar[bool] = True

    width: int = 8
    """n: leaves of a tree."""
    preset: str = "math"
    """math or countdown: defaults of the settings below."""
    chunk: int = 16
    """Tokens of a greedy segment."""
    candidates: int = 2
    """m: likeliest tokens that may go on; 2 is the runner-up alone."""
    tau_abs: float | None = None
    """Probability that a runner-up must exceed."""
    tau_rel: float | None = None
    """Distance to the likeliest that a runner-up must be nearer than."""
    ages: Sequence[int] = (20, 30, 50)
    """r: ages at which a branch is compared with its parent."""
    edit_distance: float | None = None
    """Edit distance per token below which it is deleted; 0 for none."""
    suffix: float | None = None
    """Suffix score above which it is deleted; 1 for none."""
    rouge: float | None = None
    """ROUGE-L above which it is deleted; 1 for none."""
    force_return: int | None = None
    """Tokens after which the tree phase ends in any case."""
    eta: Mapping[int | str, float] | None = None
    """η by step: {0: 1.0, 100: 0.5} is 1 up to step 99 and one half from then on."""

    def __post_init__(self) -> None:
        checks.whole(self, ("width", "chunk"), 1)
        checks.finite(self, (name for name in _OPTIONAL if getattr(self, name) is not None))
        if self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        if not isinstance(self.candidates, int) or not 2 <= self.candidates <= 20:
            raise ValueError(f"candidates must be a whole number in 2..20, got {self.candidates!r}")
        if not all(isinstance(age, int) and age >= 1 for age in self.ages):
            raise ValueError(f"ages must be whole numbers of at least 1, got {self.ages!r}")
        if self.force_return is not None and self.force_return < 1:
            raise ValueError(f"force_return must be at least 1, got {self.force_return!r}")
        if self.eta is not None and not all(
            str(k).isdigit() and 0.0 <= v <= 1.0 for k, v in self.eta.items()
        ):
            raise ValueError(f"eta must give numbers in 0..1 by step, got {dict(self.eta)!r}")

    def _setting(self, name: str) -> float:
        value = getattr(self, name)
        return float(getattr(PRESETS[self.preset], name) if value is None else value)

    @property
    def rule(self) -> ForkRule:
        """Rule for opening branches."""
        return ForkRule(self._setting("tau_abs"), self._setting("tau_rel"), self.candidates)

    @property
    def likeness(self) -> Likeness:
        """Rule for deleting branches."""
        return Likeness(
            self._setting("edit_distance"), self._setting("suffix"), self._setting("rouge")
        )

    def leaves_of_the_tree(self, leaves: int, step: int) -> int:
        """Return round(η·n); 0 if it would be 1."""
        eta_by_step: Mapping[int | str, float] | Mapping[int, float] = (
            PRESETS[self.preset].eta if self.eta is None else self.eta
        )
        schedule = {int(k): float(v) for k, v in eta_by_step.items()}
        eta = 1.0
        if schedule:
            eta = schedule[max((k for k in schedule if k <= step), default=min(schedule))]
        count = round(eta * leaves)
        return count if count > 1 else 0

    async def grow(self, growth: Growth) -> None:
        """Grow the tree phase, then finish its branches."""
        view, leaves = growth.view, growth.width(self.width)
        await Lookahead(
            growth=growth,
            leaves=leaves,
            of_tree=self.leaves_of_the_tree(leaves, growth.room.step),
            rule=self.rule,
            likeness=self.likeness,
            ages=tuple(sorted(set(self.ages))),
            chunk=self.chunk,
            last=min(int(self._setting("force_return")), view.max_path_tokens),
            greedy=replace(view.sampling, temperature=0.0, top_p=1.0, top_k=1),
        ).grow()
