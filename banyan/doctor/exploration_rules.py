"""Rules of the diagnostic index for sampling that finds nothing new."""

from banyan.doctor.checks import above, either, every, rises, unless, vanishes
from banyan.doctor.rule import DiagnosticRule, Lever

EXPLORE = (
    Lever("generate.temperature=1.2", "flatter sampling"),
    Lever(
        "optimise.loss_settings.clip_high=0.28",
        "likelier tokens may become likelier by more (clip-higher)",
    ),
    Lever("optimise.loss_settings.entropy=0.001", "an entropy bonus"),
    Lever("generate.policy=rose", "branch where the model is unsure"),
)

MOSTLY_RIGHT = above("all_right_share", 0.5)
_LEARNT = either(
    above("all_right_share", 0.8), above("reward", 0.9)
)  # an answer is right from a reward of 1 on
SURE = unless(vanishes("entropy", to=0.1, floor=0.1), _LEARNT)  # though it has much to learn yet

EXPLORATION_RULES = (
    DiagnosticRule(
        name="duplicates",
        symptom="many completions of a group are the same, though they are long",
        module="generate",
        check=unless(
            every(above("duplicate_share", 0.3), above("completion_tokens", 20.0)),
            either(MOSTLY_RIGHT, _LEARNT),
        ),
        levers=(
            Lever("generate.temperature=1.2", "flatter sampling"),
            Lever("generate.policy=echo", "branch where the model is unsure"),
            Lever("generate.policy=rose", "branch where meanings differ"),
        ),
    ),
    DiagnosticRule(
        name="exploration-ends",
        symptom="entropy has fallen to next to nothing: exploration is nearly over, though reward "
        "still rises",
        module="generate",
        check=every(SURE, rises("reward")),
        levers=EXPLORE,
    ),
)
