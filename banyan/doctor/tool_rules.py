"""Rules of the diagnostic index for runs whose paths act in an environment."""

from banyan.doctor.checks import above
from banyan.doctor.rule import DiagnosticRule, Lever

_SHOW = Lever(
    "task.system=Call as in <calc>2 * 3</calc>.",
    "show a call that works, in the form of your environment",
)
_ROOM = Lever("generate.max_new_tokens=256", "room for a call and what follows")

TOOL_RULES = (
    DiagnosticRule(
        name="unanswered",
        symptom="actions get no answer, and their paths leave their groups: the reasons of these "
        "leaves (`banyan lineage`) say whether paths that were made again came out otherwise "
        "(ENVIRONMENT_DIVERGED: make the tool deterministic), the environment itself is wrong "
        "(ENVIRONMENT_FAULT: mend what it names), the system failed "
        "(INFRASTRUCTURE: see the verifier's log), or a call outside was lost (EFFECT_UNKNOWN: "
        "give it more of environment.seconds)",
        module="generate",
        check=above("unanswered_share", 0.01, over=20),
        levers=(Lever("environment.turns=4", "shorter paths are made again less often"),),
    ),
    DiagnosticRule(
        name="calls-malformed",
        symptom="the environment cannot read a large share of the calls",
        module="generate",
        check=above("calls_malformed_share", 0.3),
        levers=(_SHOW, _ROOM, Lever("generate.temperature=0.7", "fewer calls that are misspelt")),
    ),
    DiagnosticRule(
        name="calls-failed",
        symptom="a large share of the calls ends with an error of the tool, or at its limits",
        module="generate",
        check=above("calls_failed_share", 0.3),
        levers=(
            _SHOW,
            Lever(
                "environment={name: python, settings: {seconds: 4.0, memory_mb: 64}}",
                "more time and memory, if the answers say that they ran out",
            ),
        ),
    ),
    DiagnosticRule(
        name="answers-cut",
        symptom="a large share of the answers is longer than a path gets, and is cut in its middle",
        module="generate",
        check=above("answers_cut_share", 0.2),
        levers=(
            Lever("environment.answer_chars=8000", "more of each answer"),
            Lever("task.system=Print only what you need.", "shorter answers"),
        ),
    ),
    DiagnosticRule(
        name="turns-used-up",
        symptom="a large share of the paths ends at a call because their turns are used up, "
        "without an answer of their own",
        module="generate",
        check=above("turns_used_up_share", 0.3),
        levers=(
            Lever("environment.turns=16", "more turns"),
            Lever("task.system=Call once, then say the result.", "say when to stop"),
        ),
    ),
)
