"""The diagnostic index: symptoms in metrics, the module at fault, and its levers.

It follows the survey GFCR of rollout pipelines: generate, filter, control, replay (arXiv
2605.02913). A rule is an entry of RULES: a check of a series that gives evidence or None. The most
urgent comes first.
"""

from collections.abc import Sequence

from banyan.doctor.checks import (
    above,
    below,
    collapses,
    either,
    every,
    falls,
    grows,
    held_out_falls,
    long_tail,
    never,
    rises,
    stalls,
    unless,
)
from banyan.doctor.exploration_rules import (
    EXPLORATION_RULES,
    EXPLORE,
    MOSTLY_RIGHT,
    SURE,
)
from banyan.doctor.rule import DiagnosticRule, Finding, Lever
from banyan.doctor.series import Series
from banyan.doctor.tool_rules import TOOL_RULES


def diagnose(series: Series, more: Sequence[DiagnosticRule] = ()) -> list[Finding]:
    """Return the findings of a run, the most urgent first, by these rules and more."""
    checked = ((rule, rule.check(series)) for rule in (*RULES, *more))
    return [Finding(rule, evidence) for rule, evidence in checked if evidence]


_SMALLER_STEPS = Lever("optimise.learning_rate=1e-6", "smaller steps")
_STAY_NEAR = Lever(
    "optimise.loss_settings.kl={coef: 0.01}", "stay near the model that it began with"
)
_BALANCED = Lever("control.curriculum=dots", "prompts that are answered right half of the time")

_UNTAUGHT = never("applied")
_TOO_FAST = every(above("relative_rate", 0.003), stalls("reward"))
_COLLAPSED = collapses("reward")
_FAR = every(above("start_kl", 1.0), stalls("reward"))
_WORSE = unless(held_out_falls, rises("reward"))
_RUINED = either(
    _TOO_FAST, _COLLAPSED, _FAR, _WORSE
)  # what such a policy answers says nothing about prompts or lengths
_TOO_EASY = unless(MOSTLY_RIGHT, rises("reward"))  # it was too easy, and is not learnt by now
_TOO_HARD = above("all_wrong_share", 0.5)

RULES: Sequence[DiagnosticRule] = (
    DiagnosticRule(
        name="nothing-applied",
        symptom="not one step changed the weights",
        module="optimise",
        check=_UNTAUGHT,
        levers=(
            Lever(
                "generate.settings.width=16",
                "more tries a prompt, so that rewards of a group differ",
            ),
            _BALANCED,
            Lever(
                "filter=[{name: number, settings: {take: only}}]",
                "a scorer that tells answers apart",
            ),
            Lever("generate.temperature=1.2", "answers that differ more"),
        ),
    ),
    DiagnosticRule(
        name="not-finite",
        symptom="a loss or a gradient was not finite, and that optimizer step changed nothing",
        module="optimise",
        check=above("not_finite", 0.0, over=20),
        levers=(
            _SMALLER_STEPS,
            Lever("resources.dtype=float32", "arithmetic that does not overflow"),
            Lever("optimise.clip_norm=0.5", "shorter gradients"),
        ),
    ),
    DiagnosticRule(
        name="mismatch",
        symptom="training and sampling give the same tokens other probabilities, and not because "
        "of their age",
        module="optimise",
        check=every(
            above("mismatch_kl", 0.01), below("staleness_mean", 0.5), below("replay_share", 0.05)
        ),
        levers=(
            Lever("resources.dtype=float32", "the same arithmetic on both sides"),
            Lever(
                "optimise.loss_settings.importance={level: token, cap: 2}",
                "truncated importance weights",
            ),
        ),
    ),
    DiagnosticRule(
        name="reward-hacking",
        symptom="reward rises while held-out answers get worse",
        module="filter",
        check=every(rises("reward"), held_out_falls),
        levers=(
            Lever(
                "filter=[{name: number, settings: {take: only}}]",
                "a stricter gate, or another scorer beside it",
            ),
            Lever("eval.every=10", "see it while it happens"),
            _STAY_NEAR,
        ),
    ),
    DiagnosticRule(
        name="replay-heavy",
        symptom="more of the gradient comes from replay while reward falls",
        module="replay",
        check=every(rises("replay_share"), falls("reward")),
        levers=(
            Lever("replay.max_age=16", "old trees are not replayed any more"),
            Lever("replay.fraction=0.1", "a smaller share of each batch"),
            Lever("optimise.loss=decoupled", "corrects for the policy that sampled them"),
        ),
    ),
    DiagnosticRule(
        name="rate",
        symptom="a step moves the weights by a large share of their size, and reward does not rise",
        module="optimise",
        check=_TOO_FAST,
        levers=(_SMALLER_STEPS, Lever("optimise.warmup_steps=10", "begin slowly")),
    ),
    DiagnosticRule(
        name="reward-collapse",
        symptom="reward was better before and has fallen",
        module="optimise",
        check=_COLLAPSED,
        levers=(
            _SMALLER_STEPS,
            _STAY_NEAR,
            Lever("optimise.decay_steps=100", "a rate that falls, so that what was learnt stays"),
        ),
    ),
    DiagnosticRule(
        name="held-out-falls",
        symptom="held-out answers got worse",
        module="optimise",
        check=_WORSE,
        levers=(_SMALLER_STEPS, _STAY_NEAR, Lever("eval.every=10", "see it while it happens")),
    ),
    DiagnosticRule(
        name="gradient-norm",
        symptom="gradients are huge, or grow",
        module="optimise",
        check=either(
            above("grad_norm", 100.0), every(above("grad_norm", 1.0), grows("grad_norm", 10.0))
        ),
        levers=(
            _SMALLER_STEPS,
            Lever("optimise.clip_norm=0.5", "shorter gradients"),
            Lever(
                "optimise.advantage=grpo", "an estimator that does not divide by a scale next to 0"
            ),
        ),
    ),
    DiagnosticRule(
        name="far-from-start",
        symptom="the policy has gone far from the model that the run began with, and reward does "
        "not rise",
        module="optimise",
        check=_FAR,
        levers=(_STAY_NEAR, _SMALLER_STEPS),
    ),
    *TOOL_RULES,
    DiagnosticRule(
        name="too-easy",
        symptom="most groups are all right, and teach nothing",
        module="control",
        check=_TOO_EASY,
        levers=(
            _BALANCED,
            Lever("control.curriculum=dart", "fewer rollouts where most succeed"),
        ),
    ),
    DiagnosticRule(
        name="too-hard",
        symptom="most groups are all wrong, and teach nothing",
        module="generate",
        check=unless(_TOO_HARD, _RUINED),
        levers=(
            Lever("task.system=Think step by step.", "a hint of how to answer"),
            Lever("generate.settings.width=16", "more tries a prompt"),
            _BALANCED,
            Lever("control.curriculum=seeds", "examples that succeeded in the prompt"),
        ),
    ),
    DiagnosticRule(
        name="no-spread",
        symptom="within most groups all rewards are equal, and teach nothing",
        module="filter",
        check=unless(above("zero_variance_share", 0.5), either(MOSTLY_RIGHT, _TOO_HARD, _UNTAUGHT)),
        levers=(
            Lever(
                "filter=[{name: number, settings: {take: only}}]",
                "a scorer that tells answers apart",
            ),
            Lever("generate.settings.width=16", "more tries a prompt"),
            Lever("generate.temperature=1.2", "answers that differ more"),
        ),
    ),
    DiagnosticRule(
        name="entropy-collapse",
        symptom="entropy falls to half or to next to nothing, and reward does not rise",
        module="generate",
        check=either(
            every(
                falls("entropy", to=0.5), stalls("reward"), below("all_right_share", 0.5)
            ),  # whoever is right is sure
            every(SURE, stalls("reward")),
        ),
        levers=EXPLORE,
    ),
    DiagnosticRule(
        name="off-policy",
        symptom="what is trained on is not what the policy would sample",
        module="control",
        check=either(below("ess", 0.5), above("staleness_mean", 4.0)),
        levers=(
            Lever("control.max_staleness=1", "a bound on age"),
            Lever(
                "optimise.loss=decoupled", "clipped around the weights at the start of the batch"
            ),
            Lever(
                "optimise.loss_settings.importance={level: token, cap: 2}",
                "truncated importance weights",
            ),
            Lever(
                "control.stale_groups=drop", "give old groups up before they are sampled to the end"
            ),
        ),
    ),
    DiagnosticRule(
        name="clipped",
        symptom="a large share of the tokens is clipped",
        module="optimise",
        check=above("clip_fraction", 0.3),
        levers=(
            _SMALLER_STEPS,
            Lever("optimise.loss_settings.clip_high=0.28", "a wider band"),
        ),
    ),
    DiagnosticRule(
        name="malformed",
        symptom="scorers cannot read a large share of the answers",
        module="filter",
        check=unless(above("malformed_share", 0.3), _RUINED),
        levers=(
            Lever("task.system=Answer with one number.", "say the form that is wanted"),
            Lever("generate.max_new_tokens=256", "room to end the answer"),
        ),
    ),
    DiagnosticRule(
        name="unscored",
        symptom="a large share of the leaves could not be scored",
        module="filter",
        check=above("unscorable_share", 0.3),
        levers=(
            Lever("control.score_deadline_s=300", "more time for a score"),
            Lever("filter=[{name: number}]", "another scorer"),
        ),
    ),
    DiagnosticRule(
        name="longer-not-better",
        symptom="completions get longer, and reward does not rise",
        module="control",
        check=unless(every(rises("completion_tokens", by=0.2), stalls("reward")), _RUINED),
        levers=(
            Lever(
                "optimise.advantage=dapo",
                "with advantage_settings longest and buffer, 0 by themselves: a penalty on length "
                "near the limit",
            ),
            Lever("generate.max_new_tokens=64", "a lower limit"),
            Lever(
                "optimise.loss_settings.mode=seq-mean-token-sum",
                "a loss that does not favour length",
            ),
        ),
    ),
    DiagnosticRule(
        name="length-limited",
        symptom="the length limit ends most completions",
        module="control",
        check=unless(above("length_limited_share", 0.5), _RUINED),
        levers=(
            Lever("generate.max_new_tokens=256", "room to end the answer"),
            Lever(
                "optimise.advantage=dapo",
                "with advantage_settings longest and buffer, 0 by themselves: a penalty on length "
                "near the limit",
            ),
        ),
    ),
    DiagnosticRule(
        name="long-tail",
        symptom="few completions are many times as long as most, and a step waits for them",
        module="control",
        check=long_tail,
        levers=(
            Lever("control.max_staleness=1", "sampling goes on while training runs"),
            Lever(
                "control.over_provision=4",
                "grow more groups than a step needs (with max_staleness)",
            ),
            Lever("control.redundancy=1", "spare trees; the slowest are stopped"),
        ),
    ),
    *EXPLORATION_RULES,
)
