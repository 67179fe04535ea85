"""APRIL: tokens a second where twice the groups of a batch are in hand and lengths have a tail."""

from collections.abc import Mapping, Sequence

from bench.claims import virtual
from bench.claims.claim import Claim, Finding, verdict
from bench.claims.intervals import Pairs, pairs
from bench.claims.virtual import Chain, Step
from bench.harness.kept import Cell
from services.rollout.engines.scripted.latency import Latency

GROUPS, LEAVES, STEPS, WARM = 8, 8, 16, 6
LAWS: Mapping[str, Chain] = {
    "long tail": virtual.mixed((0.7, 16), (0.25, 48), (0.05, 160)),
    "geometric": virtual.mixed((1.0, 31)),
}
FILLS = (16, 64, 256)
"""Branches whose decoding takes as long as a step of the engine does without any."""
_SAID = 1.22


def measure(seed: int) -> Cell:
    """Return tokens a unit of time, by law, arm and fill."""
    arms = {"plain": (0, 0), "april": (GROUPS, 64)}
    return {
        law: {
            arm: _throughput(_run(seed, chain, extra, stale))
            for arm, (extra, stale) in arms.items()
        }
        for law, chain in LAWS.items()
    }


def _run(seed: int, chain: Chain, extra: int, stale: int) -> list[Step]:
    control = {"groups_per_batch": GROUPS, "over_provision": extra, "max_staleness": stale}
    generate = {"settings": {"width": LEAVES}, "max_new_tokens": 512}
    endless = virtual.VirtualRun(virtual.recipe(seed, generate, control), chain, 10 * STEPS)
    return [endless.advance() for _ in range(STEPS)]


def _throughput(steps: Sequence[Step]) -> dict[str, float]:
    """Return decoded tokens a unit of time behind the first steps, by fill."""
    late = steps[WARM:]
    decoded = sum(branches for step in late for _, branches in step.ticks)
    latencies = {fill: Latency(latency_s=1.0, branch_s=1 / fill) for fill in FILLS}
    return {
        str(fill): decoded / sum(step.seconds(latency) for step in late)
        for fill, latency in latencies.items()
    }


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare the arms at the fullest engine; say the others beside it."""
    gains = {law: [_gain(cells, law, fill) for fill in FILLS] for law in LAWS}
    found, *emptier = gains["long tail"]
    others = ", ".join(f"{100 * (g.estimate - 1):+.0f} %" for g in emptier)
    even = f"{100 * (gains['geometric'][0].estimate - 1):+.0f} %"
    return Finding(
        ours=f"{100 * (found.estimate - 1):+.0f} % tokens a second on a full engine ({others} on"
        f" emptier ones; {even} with lengths of one geometric law)",
        n=f"{len(cells)} seeds, {STEPS - WARM} steps each",
        interval=f"{100 * (found.low - 1):+.0f} to {100 * (found.high - 1):+.0f} %",
        on="virtual time: control's gate, growers and the scripted engine; no training time",
        verdict=verdict(found.low, found.high, _SAID),
    )


def _gain(cells: Sequence[Cell], law: str, fill: int) -> Pairs:
    april, plain = ([cell[law][arm][str(fill)] for cell in cells] for arm in ("april", "plain"))
    return pairs(april, plain)


CLAIM = Claim(
    name="april",
    system="APRIL (RLsys-Foundation/APRIL)",
    says="+22 % rollout throughput where lengths have a long tail",
    tell=tell,
    seeds=range(6),
    asked={"groups": GROUPS, "leaves": LEAVES, "steps": STEPS, "warm": WARM, "fills": FILLS},
    measure=measure,
)
