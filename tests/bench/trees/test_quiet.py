"""Seconds of two arms on a machine that rests."""

from typing import Any

from bench.harness.record import NO_TARGET
from bench.trees import quiet
from bench.trees.protocol import MAIN, Wanted


def _get(wanted: Wanted) -> dict[str, Any]:
    """Return a run of the experiment: `treepo` costs the least of the trees."""
    return _run({"treepo": 200.0, "iid-grpo": 400.0}.get(wanted.arm.name, 500.0), 1.0)


def _run(tokens: float, seconds: float) -> dict[str, Any]:
    points = [
        {"accuracy": a, "sampled": tokens * n, "seconds": seconds * n, "processor_s": seconds}
        for n, a in enumerate((0.2, 0.95, 0.95), 1)
    ]
    return {"points": points, "cap": 1000, "load": [0.5, 1.25]}


def test_the_arms_take_turns_in_being_first() -> None:
    runs = list(quiet.wanted(_get))
    assert [(one.arm.name, one.seed) for one in runs] == [
        ("iid-grpo", 0),
        ("treepo", 0),
        ("treepo", 1),
        ("iid-grpo", 1),
        ("iid-grpo", 2),
        ("treepo", 2),
    ]
    assert {one.task for one in runs} == {MAIN}


def test_seconds_are_compared_until_runs_are_there() -> None:
    def rested(one: Wanted) -> dict[str, Any]:
        return _run(1.0, (6.0 if one.arm.name == "iid-grpo" else 4.0) * (1 + one.seed / 10))

    [note], heads = quiet.said(_get, rested)
    assert note.startswith(
        "one run at a time, 3 seeds, load 0.5 to 1.2: seconds of updates of iid-grpo over those of"
        " treepo: 1.50 (1."
    )
    assert [(head.figure[:5], head.target, head.met) for head in heads] == [
        ("1.50 ", NO_TARGET, None)
    ] * 2


def test_one_seed_says_nothing() -> None:
    assert quiet.said(_get, lambda one: _run(1.0, 1.0) if one.seed == 0 else None) == ([], [])
    assert quiet.said(lambda _: None, _get) == ([], [])
