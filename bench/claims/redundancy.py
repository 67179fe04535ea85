"""RollArt: the time of a step where a group takes the first four of six trees."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from bench.claims import virtual
from bench.claims.claim import Claim, Finding, verdict
from bench.claims.intervals import Pairs, pairs
from bench.claims.virtual import Chain
from bench.harness.kept import Cell
from services.rollout.engines.scripted.latency import Latency

GROUPS, TREES, SPARE, STEPS = 8, 4, 2, 12
LAWS: Mapping[str, Chain] = {
    "geometric": virtual.mixed((1.0, 64)),
    "long tail": virtual.mixed((0.7, 32), (0.25, 96), (0.05, 320)),
}
WAITS = Latency(latency_s=1.0)  # a tool's or an environment's time: no branch slows another
_SAID = (1.35, 2.05)


def measure(seed: int) -> Cell:
    """Return mean step time, mean length taken and share of tokens wasted, by law and arm."""
    return {law: {str(n): _arm(seed, chain, n) for n in (0, SPARE)} for law, chain in LAWS.items()}


def _arm(seed: int, chain: Chain, spare: int) -> dict[str, float]:
    control = {"groups_per_batch": GROUPS, "redundancy": spare}
    generate = {"settings": {"width": 1}, "trees": TREES, "max_new_tokens": 1024}
    steps = virtual.run(virtual.recipe(seed, generate, control), chain, STEPS)
    taken = [length for step in steps for length in step.lengths]
    wasted = sum(step.wasted for step in steps)
    return {
        "seconds": fmean(step.seconds(WAITS) for step in steps),
        "length": fmean(taken),
        "wasted": wasted / (wasted + sum(taken)),
    }


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare step times; say what it costs."""
    found = {law: _ratio(cells, law) for law in LAWS}
    main, tail = found["geometric"], found["long tail"]
    spare = [cell["geometric"][str(SPARE)] for cell in cells]
    plain = fmean(cell["geometric"]["0"]["length"] for cell in cells)
    shorter = 1 - fmean(cell["length"] for cell in spare) / plain
    return Finding(
        ours=f"{main.estimate:.2f} times (geometric lengths), {tail.estimate:.2f} (long tail);"
        f" answers taken are {100 * shorter:.0f} % shorter than those of the policy, and"
        f" {100 * fmean(cell['wasted'] for cell in spare):.0f} % of tokens are wasted",
        n=f"{len(cells)} seeds, {STEPS} steps of {GROUPS} groups",
        interval=f"{main.low:.2f} to {main.high:.2f}",
        on=f"virtual time, first {TREES} of {TREES + SPARE} trees; branches do not slow each other",
        verdict=verdict(main.low, main.high, _SAID[0]),
    )


def _ratio(cells: Sequence[Cell], law: str) -> Pairs:
    plain, spare = ([cell[law][n]["seconds"] for cell in cells] for n in ("0", str(SPARE)))
    return pairs(plain, spare)


CLAIM = Claim(
    name="redundancy",
    system="RollArt (arXiv 2512.22560)",
    says="1.35 to 2.05 times shorter steps (the whole system)",
    tell=tell,
    seeds=range(6),
    asked={"groups": GROUPS, "trees": TREES, "spare": SPARE, "steps": STEPS},
    measure=measure,
)
