"""docs/claims.md has a row for each claim, written from kept figures; verdicts follow intervals."""

import re
from pathlib import Path

import pytest

from bench.claims import virtual
from bench.claims.april import FILLS
from bench.claims.claim import (
    KEPT,
    NO_COMPARISON,
    NOT_SHOWN,
    SHOWN,
    UNMEASURED,
    Claim,
    Finding,
    verdict,
)
from bench.claims.every import CLAIMS
from bench.claims.intervals import differences, pairs
from bench.claims.page import PAGE, rewritten, table
from bench.claims.recorded import row
from bench.harness.kept import Kept
from services.rollout.engines.scripted.latency import Latency


def test_the_page_is_the_one_that_is_written() -> None:
    assert rewritten(PAGE.read_text(), Kept(KEPT)) == PAGE.read_text(), (
        "run python -m bench.claims.page"
    )


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_has_a_verdict_and_a_figure_has_a_command(claim: Claim) -> None:
    found = claim.find(Kept(KEPT))
    assert found.verdict in (SHOWN, NOT_SHOWN, NO_COMPARISON, UNMEASURED)
    assert claim.command or found.verdict in (NO_COMPARISON, UNMEASURED)
    assert bool(claim.seeds) == (claim.measure is not None)
    assert len([other for other in CLAIMS if other.name == claim.name]) == 1


def test_a_claim_without_its_cells_says_so_and_is_measured_once(tmp_path: Path) -> None:
    kept, measured = Kept(tmp_path), list[int]()

    def measure(seed: int) -> dict[str, int]:
        measured.append(seed)
        return {"figure": seed}

    claim = Claim(
        name="some",
        system="a system",
        says="a claim",
        tell=lambda cells: Finding(
            ours=str([cell["figure"] for cell in cells]), verdict=SHOWN, on="–"
        ),
        seeds=(3, 4),
        measure=measure,
    )
    assert claim.find(kept).verdict == UNMEASURED and not measured
    assert claim.find(kept, measures=True).ours == claim.find(kept).ours == "[3, 4]"
    assert measured == [3, 4] and claim.command == "python -m bench claims some"


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(1.1, 1.5, SHOWN), (0.9, 1.5, NOT_SHOWN), (1.05, 1.15, NOT_SHOWN), (2.0, 3.0, SHOWN)],
)
def test_a_claim_is_shown_beyond_no_effect_and_up_to_its_size(
    low: float, high: float, found: str
) -> None:
    assert verdict(low, high, 1.2) == found


def test_pairs_that_differ_by_one_factor_have_it_as_their_interval() -> None:
    found = pairs([2.0, 8.0, 3.0], [1.0, 4.0, 1.5])
    assert [found.estimate, found.low, found.high] == pytest.approx([2.0, 2.0, 2.0])
    wider = pairs([1.0, 4.0], [1.0, 1.0])
    assert wider.estimate == pytest.approx(2.0) and wider.low < 1 < 4 < wider.high


def test_differences_of_pairs_have_an_interval() -> None:
    assert differences([3.0, 5.0, 9.0], [1.0, 3.0, 7.0]) == pytest.approx((2.0, 2.0, 2.0))
    found, low, high = differences([1.0, 4.0], [0.0, 0.0])
    assert found == 2.5 and high - found == pytest.approx(1.5 * 12.706, rel=1e-3)
    assert found - low == high - found


def test_recorded_rows_are_read_by_name() -> None:
    assert float(row("saving", "the same, about 6")["saved"].split()[0]) == 32.2
    with pytest.raises(KeyError, match="no row"):
        row("saving", "`nothing`")


def run(spare: int = 0, extra: int = 0) -> list[virtual.Step]:
    control = {
        "groups_per_batch": 4,
        "redundancy": spare,
        "over_provision": extra,
        "max_staleness": 8 if extra else 0,
    }
    generate = {"settings": {"width": 2}, "trees": 2, "max_new_tokens": 64}
    return virtual.run(virtual.recipe(0, generate, control), virtual.mixed((1.0, 12)), 6)


def test_no_token_is_lost_but_those_of_stopped_trees() -> None:
    for spare, extra in ((0, 0), (2, 0), (0, 4)):
        steps = run(spare, extra)
        decoded = sum(branches for step in steps for _, branches in step.ticks)
        kept = sum(sum(step.lengths) + step.wasted for step in steps)
        ended = sum(len(step.lengths) for step in steps)  # their ends are decoded, and no tokens
        assert (sum(step.wasted for step in steps) > 0) == (spare > 0)
        assert all(len(step.lengths) == 8 for step in steps)
        assert kept <= decoded and (spare or decoded <= kept + 2 * ended)


def test_spare_trees_and_groups_make_steps_shorter() -> None:
    seconds = {
        arm: sum(step.seconds(Latency(latency_s=1.0)) for step in run(*arm))
        for arm in ((0, 0), (2, 0), (0, 4))
    }
    assert seconds[2, 0] < seconds[0, 0] and seconds[0, 4] < seconds[0, 0]


def test_a_step_takes_as_long_again_for_the_branches_that_fill_it() -> None:
    step = virtual.Step([(10, FILLS[0])], [], 0)
    assert step.seconds(Latency(latency_s=1.0, branch_s=1 / FILLS[0])) == 2.0


def test_every_command_of_the_page_is_one_of_a_bench_or_of_a_claim() -> None:
    commands = set(re.findall(r"`(python -m bench [^`]+)`", table(Kept(KEPT))))
    known = {f"python -m bench claims {claim.name}" for claim in CLAIMS}
    assert commands - known == {f"python -m bench {name}" for name in ("saving", "packing")}
