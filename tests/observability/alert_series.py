"""Series of a healthy run, and of each fault an alert is for, in promtool's notation: a sample a
minute, `start+change x times`."""

from dataclasses import dataclass
from typing import Any

import yaml

from banyan.observability import rules

MINUTES = 75
SCORES = 'banyan_score_duration_seconds_bucket{{run="r",scorer="number",le="{}"}}'
INGEST = 'banyan_ingest_duration_seconds_bucket{{service="treestore",le="{}"}}'


def steady(value: float) -> str:
    return f"{value}+0x{MINUTES}"


def rising(by: float, start: float = 0) -> str:
    return f"{start}+{by}x{MINUTES}"


def mean(name: str, value: float, more: str = "") -> dict[str, str]:
    """Return a histogram of ten steps a minute with this mean."""
    labels = f'{{run="r"{more}}}'
    return {f"{name}_sum{labels}": rising(10 * value), f"{name}_count{labels}": rising(10)}


def durations(bucket: str, seconds: float) -> dict[str, str]:
    """Return the buckets of a histogram whose values are all alike."""
    limits = ("0.01", "1.0", "2.5", "5.0", "+Inf")
    return {bucket.format(le): rising(40 if seconds <= float(le) else 0) for le in limits}


HEALTHY: dict[str, str] = {
    'banyan_run_step{run="r"}': rising(10),
    'banyan_run_step_age_seconds{run="r"}': steady(5),
    'banyan_run_reward{run="r"}': rising(0.002, start=0.4),
    'banyan_run_held_out_reward{run="r"}': steady(0.5),
    'banyan_members{run="r"}': steady(2),
    'banyan_trees_held{run="r",state="growing"}': steady(8),
    'banyan_trees_held{run="r",state="scoring"}': steady(2),
    **mean("banyan_step_duration_seconds", 3.0),
    **mean("banyan_step_entropy", 0.8),
    **mean("banyan_step_mismatch_kl", 1e-4),
    **mean("banyan_step_start_kl", 0.05),
    **mean("banyan_step_zero_variance_share", 0.3),
    **mean("banyan_step_staleness_share", 0.9, ',bin="0"'),
    'banyan_steps_skipped_total{run="r"}': steady(0),
    'banyan_engine_policy_step{run="r",process="rollout-r-0"}': rising(10),
    'banyan_weights_unproven_total{run="r",process="rollout-r-0"}': steady(0),
    **durations(SCORES, 0.01),
    'banyan_scores_total{scorer="number",reason="scored"}': rising(40),
    'banyan_scores_missing_total{scorer="number",reason="TIMEOUT"}': rising(0.1),
    'banyan_trees_opened_total{run="r"}': rising(10),
    'banyan_trees_dropped_total{reason="REDUNDANT"}': rising(5),
    'banyan_claims_again_total{run="r"}': rising(0.1),
    "banyan_segments_stored_total": rising(100),
    'banyan_segments_refused_total{reason="TREE_CLOSED"}': rising(0.1),
    'up{job="banyan",process="treestore"}': steady(1),
    'process_uptime_seconds{process="treestore",service="treestore"}': rising(60),
    **durations(INGEST, 0.01),
    'banyan_store_waiting{queue="outbox"}': steady(3),
    'banyan_store_waiting{queue="parked"}': steady(0),
    'banyan_store_waiting{queue="dead"}': steady(4),
    'banyan_log_waiting{queue="LINEAGE/verifier"}': steady(20),
    'banyan_log_bytes{queue="LINEAGE"}': steady(5e8),
    'banyan_log_bytes{queue="GROWTH"}': steady(1e6),
    'banyan_logger_lost_total{process="learner-r-0",logger="wandb"}': steady(0),
}


@dataclass(frozen=True)
class Fault:
    """An alert's fault.

    series: those that differ from a healthy run's
    labels: of the alert, beside its name and severity
    summary: what it says
    """

    series: dict[str, str]
    labels: dict[str, str]
    summary: str


RUN = {"run": "r"}
NODE = {"run": "r", "process": "rollout-r-0"}
FAULTS: dict[str, Fault] = {
    "BanyanRunStalled": Fault(
        {
            'banyan_run_step{run="r"}': "0+10x30 300+0x45",
            'banyan_run_step_age_seconds{run="r"}': "5+0x30 60+60x45",
        },
        RUN,
        "Run r has made no step for 45m 0s.",
    ),
    "BanyanNoMembers": Fault(
        {'banyan_members{run="r"}': "2+0x60 0+0x15"},
        RUN,
        "Run r has trees to grow and no rollout node.",
    ),
    "BanyanRewardFell": Fault(
        {'banyan_run_reward{run="r"}': "0.8+0x25 0.2+0x50"},
        RUN,
        "The mean reward of run r is 0.6 below its best.",
    ),
    "BanyanHeldOutFell": Fault(
        {'banyan_run_held_out_reward{run="r"}': "0.75+0x40 0.25+0x35"},
        RUN,
        "Held-out rows of run r earn 0.5 less than at best.",
    ),
    "BanyanEntropyCollapsed": Fault(
        mean("banyan_step_entropy", 0.004),
        RUN,
        "The policy of run r is nearly deterministic (entropy 0.004) and has not learnt its task.",
    ),
    "BanyanFarFromStart": Fault(
        {**mean("banyan_step_start_kl", 4.0), 'banyan_run_reward{run="r"}': steady(0.3)},
        RUN,
        "The policy of run r is 4 nat from the model that it began with, and its reward does not"
        " rise.",
    ),
    "BanyanMismatch": Fault(
        mean("banyan_step_mismatch_kl", 0.5),
        RUN,
        "Training and sampling of run r give fresh tokens other probabilities (KL 0.5).",
    ),
    "BanyanGroupsTeachNothing": Fault(
        mean("banyan_step_zero_variance_share", 1.0),
        RUN,
        "In 100% of the groups of run r all rewards are equal.",
    ),
    "BanyanStepsSkipped": Fault(
        {'banyan_steps_skipped_total{run="r"}': "0+0x60 0+1x15"},
        RUN,
        "A loss or a gradient of run r was not finite, and steps were skipped.",
    ),
    "BanyanNodeStale": Fault(
        {'banyan_engine_policy_step{run="r",process="rollout-r-0"}': steady(0)},
        NODE,
        "Node rollout-r-0 of run r samples from a policy that is 750 steps old.",
    ),
    "BanyanWeightsUnproven": Fault(
        {'banyan_weights_unproven_total{run="r",process="rollout-r-0"}': rising(1)},
        NODE,
        "Node rollout-r-0 of run r loaded weights, and nothing shows that it computes with them.",
    ),
    "BanyanScoresSlow": Fault(
        durations(SCORES, 4.0),
        {"run": "r", "scorer": "number"},
        "One in ten scores of number in run r takes longer than 4.75s.",
    ),
    "BanyanScoresMissing": Fault(
        {'banyan_scores_missing_total{scorer="number",reason="TIMEOUT"}': rising(10)},
        {"scorer": "number", "reason": "TIMEOUT"},
        "25% of the scores of number are missing: TIMEOUT.",
    ),
    "BanyanTreesDropped": Fault(
        {'banyan_trees_dropped_total{reason="STALE"}': rising(5)},
        {"reason": "STALE"},
        "50% of the trees are given up: STALE.",
    ),
    "BanyanTreesGrownAgain": Fault(
        {
            'banyan_claims_again_total{run="r"}': rising(5),
            'banyan_trees_opened_total{run="large"}': rising(1000),  # and which is well
        },
        RUN,
        "Nodes of run r gave trees back, or lost them, 75 times in a quarter of an hour.",
    ),
    "BanyanSegmentsRefused": Fault(
        {'banyan_segments_refused_total{reason="TREE_CLOSED"}': rising(20)},
        {"reason": "TREE_CLOSED"},
        "The store refuses segments: TREE_CLOSED.",
    ),
    "BanyanProcessDown": Fault(
        {'up{job="banyan",process="treestore"}': "1+0x65 0+0x10"},
        {"job": "banyan", "process": "treestore"},
        "Process treestore does not answer.",
    ),
    "BanyanProcessRestarts": Fault(
        {
            'process_uptime_seconds{process="treestore",service="treestore"}': (
                "0+60x62 1+60x2 1+60x2 1+60x2 1+60x3"
            )
        },
        {"process": "treestore", "service": "treestore"},
        "Process treestore began anew 4 times in a quarter of an hour.",
    ),
    "BanyanIngestSlow": Fault(
        durations(INGEST, 4.0),
        {},
        "One in a hundred transactions of the store takes longer than 4.975s.",
    ),
    "BanyanStoreBehind": Fault(
        {'banyan_store_waiting{queue="parked"}': steady(900)},
        {"queue": "parked"},
        "900 rows wait in the store (parked).",
    ),
    "BanyanLogBehind": Fault(
        {'banyan_log_waiting{queue="LINEAGE/verifier"}': steady(4000)},
        {"queue": "LINEAGE/verifier"},
        "4000 messages wait for LINEAGE/verifier.",
    ),
    "BanyanLogFull": Fault(
        {'banyan_log_bytes{queue="LINEAGE"}': steady(2e9)},
        {"queue": "LINEAGE"},
        "Stream LINEAGE holds 1.863GiB, four fifths of what it may; full, it takes nothing more.",
    ),
    "BanyanDeadLetters": Fault(
        {'banyan_store_waiting{queue="dead"}': "4+0x60 6+0x15"},
        {"queue": "dead"},
        "2 messages were given up in the last hour.",
    ),
    "BanyanRecordsLost": Fault(
        {'banyan_logger_lost_total{process="learner-r-0",logger="wandb"}': rising(3)},
        {"process": "learner-r-0"},
        "Process learner-r-0 loses metrics or spans on their way to where they are kept.",
    ),
}

FURTHER_FAULTS: tuple[tuple[str, Fault], ...] = (
    (
        "BanyanStoreBehind",
        Fault(
            {'banyan_store_waiting{queue="outbox"}': steady(900)},
            {"queue": "outbox"},
            "900 rows wait in the store (outbox).",
        ),
    ),
    (
        "BanyanLogFull",
        Fault(
            {'banyan_log_bytes{queue="GROWTH"}': steady(2.5e8)},
            {"queue": "GROWTH"},
            "Stream GROWTH holds 238.4MiB, four fifths of what it may; full, it takes nothing"
            " more.",
        ),
    ),
    *(
        (
            "BanyanRecordsLost",
            Fault(
                {f'banyan_spans_{what}_total{{process="verifier"}}': rising(3)},
                {"process": "verifier"},
                "Process verifier loses metrics or spans on their way to where they are kept.",
            ),
        )
        for what in ("failed", "dropped")
    ),
)
"""Other ways in which something of the same alerts goes wrong."""

COLLAPSES_AT = 40
QUICK_FAULTS: dict[str, dict[str, str]] = {
    "BanyanEntropyCollapsed": {
        'banyan_step_entropy_sum{run="r"}': "0+8x40 320+0.04x35",
        'banyan_step_entropy_count{run="r"}': rising(10),
    },
    "BanyanFarFromStart": {
        'banyan_step_start_kl_sum{run="r"}': "0+0.5x40 20+40x35",
        'banyan_step_start_kl_count{run="r"}': rising(10),
        'banyan_run_reward{run="r"}': "0.4+0.01x40 0.2+0x35",
    },
}
"""Series of policies that collapse in a minute; their alerts fire within ten."""

LIKE_FAULTS: dict[str, str] = {
    # no node, and no tree to grow
    'banyan_members{run="r"}': steady(0),
    'banyan_trees_held{run="r",state="growing"}': steady(0),
    # a policy that is sure and far from its start, of a task that is learnt
    **mean("banyan_step_entropy", 0.004),
    **mean("banyan_step_start_kl", 4.0),
    'banyan_run_reward{run="r"}': rising(0.001, start=0.91),
    # tokens of old weights
    **mean("banyan_step_mismatch_kl", 0.5),
    **mean("banyan_step_staleness_share", 0.2, ',bin="0"'),
    # a judge that takes its time, a burst of messages, a run that ended, a receiver that takes all
    **durations(SCORES.replace("number", "judge"), 4.0),
    'banyan_log_waiting{queue="LINEAGE/verifier"}': "20+0x64 4000+0x2 20+0x7",
    'banyan_trees_dropped_total{reason="RUN_OVER"}': rising(5),
    'banyan_spans_sent_total{process="verifier"}': rising(100),
}
"""Series that look like faults and are none."""


def promtool_file(
    rule_file: str, alerts: dict[str, dict[str, Any]], only: str = ""
) -> dict[str, Any]:
    """Return the file of promtool: for each fault exactly its alert fires, and none without one.

    alerts: the rules of all alerts, by name
    only: the alert whose faults are tried, or `healthy`; empty for all
    """
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    at = f"{MINUTES}m"

    def case(series: dict[str, str], names: tuple[str, ...]) -> dict[str, Any]:
        expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
        return {
            "interval": "1m",
            "input_series": [{"series": k, "values": v} for k, v in (HEALTHY | series).items()],
            "promql_expr_test": [{"expr": firing, "eval_time": at, "exp_samples": expected}],
        }

    cases: list[dict[str, Any]] = []
    if only in ("", "healthy"):
        cases += [case({}, ()), {"name": "like faults", **case(LIKE_FAULTS, ())}]
    for name, fault in (*FAULTS.items(), *FURTHER_FAULTS):
        if only not in ("", name):
            continue
        rule = alerts[name]
        words = {"summary": fault.summary, "runbook_url": rule["annotations"]["runbook_url"]}
        found = {"exp_labels": rule["labels"] | fault.labels, "exp_annotations": words}
        told = {"alertname": name, "eval_time": at, "exp_alerts": [found]}
        cases.append({"name": name, **case(fault.series, (name,)), "alert_rule_test": [told]})
    for name, series in QUICK_FAULTS.items() if only == "" else ():
        quick = case(series, ())
        firing_now = f'ALERTS{{alertstate="firing",alertname="{name}"}} > 0'
        quick["promql_expr_test"] = [
            {"expr": f"count({firing_now})", "eval_time": f"{minute}m", "exp_samples": samples}
            for minute, samples in (
                (COLLAPSES_AT, []),
                (COLLAPSES_AT + 10, [{"labels": "{}", "value": 1}]),
            )
        ]
        cases.append({"name": f"quick {name}", **quick})
    # Without an order promtool evaluates groups in any, and an alert may see a recorded value of a
    # minute before.
    order = [group["name"] for group in yaml.safe_load(rules.rule_file())["groups"]]
    return {
        "rule_files": [rule_file],
        "evaluation_interval": "1m",
        "group_eval_order": order,
        "tests": cases,
    }
