"""Types of the documents of runs, for the OpenAPI document. Pure."""

from collections.abc import Mapping

from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data
from services.gateway.page.http.json_types import (
    Schema,
    anything,
    count,
    each,
    flag,
    members,
    moment,
    nullable,
    number,
    pair,
    ref,
    text,
    whole,
)

_RUN_STATES = [plain_data.run_state(state) for state in rs.RunState.values()]
STEPS = each(members({"step": count()}, more=number()), "metrics by name, of each step in order")
_RUN = members(
    {
        "run_id": text(),
        "name": text(),
        "state": text(words=_RUN_STATES),
        "cause": nullable(text()),
        "step": count(),
        "steps": nullable(whole("budget of the recipe")),
        "created": moment(),
        "ended": moment(),
        "seconds": number("without pauses"),
        "model": nullable(text()),
        "task": nullable(text()),
        "policy": nullable(text("tree policy")),
        "advantage": nullable(text("estimator")),
        "live": flag("whether it works now"),
    }
)
_VOTES = members(
    {
        "rows": count(),
        "accuracy": number(),
        "mean_reward": number(),
        "wilson_95": pair(number()),
        "leaf_accuracy": number(),
        "leaf_mean_reward": number(),
    }
)
_EVALUATION: Mapping[str, Schema] = {
    "label": text(),
    "rows": count(),
    "done": count("rows that are closed or dropped"),
    "n": count("leaves with a score"),
    "unscorable": count(),
    "accuracy": number(),
    "mean_reward": number(),
    "wilson_95": nullable(pair(number())),
    "votes": nullable(ref("Votes")),
    "head_votes": nullable(ref("Votes")),
}
_PROGRESS = members(
    {
        "step": nullable(count()),
        "batches": count(),
        "groups": members(
            {n: count() for n in ("opened", "open", "closed", "consumed", "dropped")}
        ),
        "leaves": count(),
        "unscorable": count(),
        "mean_reward": number(),
        "sampled_tokens": count(),
        "saved_tokens": whole(),
        "unused_tokens": whole(),
        "evaluations": each(ref("Evaluation")),
        "set_aside": each(members({"batch": count(), "cause": text()})),
    }
)
_MEMBER = members(
    {
        "node": text(),
        "host": text(),
        "joined": flag("whether it came by `banyan join`"),
        "present": flag(),
        "seen": moment(),
        "trees": count("trees that it grew"),
        "policy_step": nullable(count("of the policy that its engine has loaded")),
        "delivered": moment(),
    }
)
_FINDING = members(
    {
        "rule": text(),
        "module": nullable(text()),
        "severity": text(words=("error", "warning")),
        "step": nullable(count()),
        "sentence": text(),
        "remedy": nullable(text()),
        "link": text(),
        "evidence": each(
            members(
                {
                    "metric": text(),
                    "value": number(),
                    "was": number(),
                    "limit": number(),
                    "steps": pair(nullable(count())),
                }
            )
        ),
        "levers": each(members({"key": text(), "set": text(), "why": text()})),
    }
)
WHOLE: Mapping[str, Schema] = {
    "run": ref("Run", "the run in one line"),
    "progress": ref("Progress", "counts, and evaluations"),
    "recipe": anything("as resolved"),
    "members": each(ref("Member"), "its rollout nodes"),
    "left_s": number("seconds that it still takes, or null while nothing tells them"),
    "saved_share": number("share of tokens that sharing saved, or null"),
}
HEALTH: Mapping[str, Schema] = {
    "step_seconds": number("mean of the newest steps, or null before two of them"),
    "newest_step": moment(),
    "finding": nullable(ref("Finding", "the most urgent one")),
    "findings": count("all of them"),
}
COMPONENTS: Mapping[str, Schema] = {
    "Run": _RUN,
    "Votes": _VOTES,
    "Evaluation": members(_EVALUATION),
    "Measured": members({**_EVALUATION, "step": nullable(count("step whose policy it measures"))}),
    "Progress": _PROGRESS,
    "Member": _MEMBER,
    "Finding": _FINDING,
}
