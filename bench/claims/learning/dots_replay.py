"""DOTS with replay: time to an accuracy, against as many groups an update chosen evenly and fresh.

Half of an update's groups are grown, for prompts of predicted difficulty; the others are replayed.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bench.claims.claim import Claim, Finding, verdict
from bench.claims.learning import chains
from bench.claims.learning.chains import RATE, Arm
from bench.harness.kept import Cell
from bench.trees import course
from bench.trees.choice import spent
from bench.trees.figures import Ratio, ratio
from bench.trees.process import InProcess

GROUPS, WIDTH, CAP = 16, 8, 300_000
CHOICE: dict[str, Any] = {
    "references": 8,
    "mu": 2,
    "alpha": 0.5,
    "tau": 0.001,
    "candidates": 256,  # of 20,000 rows, so that looking at them is no part of the time
}
_SAID = 1 / (1 - 0.23)  # 23 % less time


def arms() -> dict[str, Arm]:
    """Return both arms, with as many groups an update and one loss."""
    loss = {"optimise": {"loss": "decoupled"}}
    ours = {
        **loss,
        "control": {"curriculum": "dots", "curriculum_settings": CHOICE},
        "replay": {"policy": "dots", "fraction": 0.5, "capacity": 512},
    }
    return {
        "dots": Arm(width=WIDTH, groups=GROUPS // 2, changes=ours),
        "uniform": Arm(width=WIDTH, groups=GROUPS, changes=loss),
    }


def measure(seed: int) -> Cell:
    """Return both courses, with what choice and replay did in each."""
    return {name: _course(arm.process(seed)) for name, arm in arms().items()}


def _course(process: InProcess) -> Cell:
    acts: list[dict[str, float]] = []

    def note() -> None:
        names = ("groups", "replay_share", "zero_variance_share")
        acts.append({name: chains.metric(process, name) for name in names})

    found = course.run(process, CAP, updated=note)
    return {**found, "acts": {name: [act[name] for act in acts] for name in acts[0]}}


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare tokens and processor time until the policy is right."""
    time, tokens = (_ratio(cells, what) for what in ("processor_s", "sampled"))
    bound = "" if time.exact else " (some runs did not get there: a bound)"
    share = fmean(fmean(cell["dots"]["acts"]["replay_share"]) for cell in cells)
    flat = {arm: fmean(map(fmean, _acts(cells, arm, "zero_variance_share"))) for arm in arms()}
    return Finding(
        ours=f"{_less(time.estimate)} processor time{bound}, {_less(tokens.estimate)} sampled"
        f" tokens; {100 * share:.0f} % of trained tokens are replayed;"
        f" {100 * flat['dots']:.0f} % of groups teach nothing, {100 * flat['uniform']:.0f} % of"
        " evenly chosen ones",
        n=f"{len(cells)} seeds a side",
        interval=f"{_less(time.high)} to {_less(time.low)}",
        on=f"{chains.ON}, until 90 % are right; training and sampling on one thread",
        verdict=verdict(time.low, time.high, _SAID),
    )


def _acts(cells: Sequence[Cell], arm: str, name: str) -> list[list[float]]:
    return [cell[arm]["acts"][name] for cell in cells]


def _ratio(cells: Sequence[Cell], what: str) -> Ratio:
    uniform, dots = ([spent(cell[arm], what) for cell in cells] for arm in ("uniform", "dots"))
    return ratio(uniform, dots)


def _less(times: float) -> str:
    """Return what a ratio of times is in percent."""
    return f"{100 / times - 100:+.0f} %"


CLAIM = Claim(
    name="dots-replay",
    system="DOTS with replay (arXiv 2506.05316)",
    says="−23 to −62 % time to equal accuracy",
    tell=tell,
    seeds=range(3),
    asked={"groups": GROUPS, "width": WIDTH, "cap": CAP, "rate": RATE, "choice": CHOICE},
    measure=measure,
)
