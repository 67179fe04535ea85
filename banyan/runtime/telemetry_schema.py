"""Names in Banyan's telemetry: spans, attributes, metrics. Tests refuse any other name.

One prompt is one trace: `gateway.open` is its root, and each span below names its parent here.
"""

from collections.abc import Mapping
from typing import Literal

from banyan.reasons import Reason

SERVICES = ("gateway", "treestore", "rollout", "verifier", "learner")

Kind = Literal["internal", "producer", "consumer", "server", "client"]

KINDS: Mapping[str, Kind] = {
    "gateway.open": "producer",
    "rollout.grow": "consumer",
    "rollout.refresh": "consumer",
    "verifier.score": "consumer",
    "verifier.act": "consumer",
    "treestore.ingest": "consumer",
    "learner.consume": "consumer",
}
"""Spans that a message begins (consumer) or that send one (producer); all others are internal.

Calls between services have two spans of one name, a client's and a server's: see `is_call`.
"""
_CALLS = "banyan.v1."


def is_call(span: str) -> bool:
    """Return whether a span is one of a call of gRPC, named `service/method` by convention."""
    return span.startswith(_CALLS) and span.count("/") == 1


SPANS: dict[str, str] = {
    "gateway.open": "a tree is opened; root of the tree's trace",
    "rollout.grow": "a node grows a claimed tree; child of gateway.open; a later claim links to "
    "the first",
    "rollout.segment": "a segment is sampled; child of rollout.grow",
    "verifier.score": "a leaf is scored; child of gateway.open",
    "verifier.act": "an action is answered; child of gateway.open",
    "verifier.sandbox": "a scorer or a program runs confined; child of what needs it",
    "verifier.replay": "a step is made again, as its state was lost; child of gateway.open",
    "treestore.ingest": "events of a tree are stored; child of gateway.open",
    "learner.consume": "a batch takes the tree; child of gateway.open, linked to learner.batch",
    "learner.batch": "a batch is assembled and committed; a trace of its own, linked to its trees",
    "learner.step": "the optimizer step of a batch; child of learner.batch",
    "learner.checkpoint": "a checkpoint is written; a trace of its own, linked to learner.step",
    "rollout.refresh": "a node loads new weights; a trace of its own, linked to the learner.step "
    "that made them",
}

ATTRIBUTES: dict[str, str] = {
    "banyan.run": "run id",
    "banyan.tree": "tree id, hex",
    "banyan.group": "group id",
    "banyan.segment": "segment id, hex",
    "banyan.leaf": "leaf as segment:end",
    "banyan.node": "rollout node id",
    "banyan.claim_epoch": "epoch of the claim",
    "banyan.policy_step": "policy step",
    "banyan.batch": "batch ordinal",
    "banyan.tokens": "tokens",
    "banyan.scorer": "scorer",
    "banyan.score": "value of a score",
    "banyan.action": "last segment of an action, hex; of a tool's answer the segment before it",
    "banyan.environment": "environment",
    "banyan.outcome": "end of a step of an environment",
    "banyan.effect": "change that a step of an environment made",
    "banyan.reason": "why something has no value or was dropped",
    "banyan.bin": "bin of a histogram",
    "banyan.logger": "name of a logger",
    "banyan.events": "events in an ingest batch",
    "banyan.bytes": "bytes",
    "banyan.state": "state of a tree",
    "banyan.queue": "queue inside a service, or a consumer of the broker",
    "banyan.program": "what ran in a sandbox: scorer or program",
    # OpenTelemetry's own names, from its conventions for processes, calls and GenAI
    "cpu.mode": "user or system",
    "rpc.system.name": "grpc",
    "rpc.method": "service/method",
    "gen_ai.operation.name": "text_completion or execute_tool",
    "gen_ai.usage.input_tokens": "tokens of a segment's prefix",
    "gen_ai.usage.cache_read.input_tokens": "those of them that were not prefilled again",
    "gen_ai.usage.output_tokens": "sampled tokens",
    "gen_ai.response.finish_reasons": "why a segment ended",
    "gen_ai.tool.name": "environment that answers an action",
    "gen_ai.evaluation.name": "scorer",
    "gen_ai.evaluation.score.value": "value of a score",
    "gen_ai.input.messages": "prompt, as JSON; only where content may leave",
    "gen_ai.output.messages": "text of a segment, as JSON; only where content may leave",
    "gen_ai.tool.call.arguments": "action; only where content may leave",
    "gen_ai.tool.call.result": "an environment's answer; only where content may leave",
}

METRICS: dict[str, tuple[str, str]] = {
    "banyan.trees.opened": ("{tree}", "trees opened by the gateway"),
    "banyan.trees.closed": ("{tree}", "trees closed by the treestore"),
    "banyan.trees.dropped": ("{tree}", "trees given up, by reason"),
    "banyan.segments.stored": ("{segment}", "segments accepted by the treestore"),
    "banyan.segments.refused": ("{segment}", "segments refused, by reason"),
    "banyan.ingest.duration": ("s", "time of one ingest transaction"),
    "banyan.tokens.sampled": ("{token}", "tokens sampled"),
    "banyan.tokens.prefilled": ("{token}", "prefix tokens prefilled"),
    "banyan.tokens.cached": ("{token}", "prefix tokens that were not prefilled again"),
    "banyan.engine.occupancy": (
        "{segment}",
        "segments decoded in a step of the model, in the mean over a second of steps",
    ),
    "banyan.scores": ("{score}", "scores given, by scorer and state"),
    "banyan.score.duration": ("s", "time to score a leaf"),
    "banyan.scores.missing": ("{score}", "scores that a leaf did not get, by scorer and reason"),
    "banyan.claims.returned": ("{tree}", "trees that a node gave back, by reason"),
    "banyan.claims.again": ("{tree}", "trees that were claimed before: given back, or lost"),
    "banyan.answers": ("{answer}", "answers of environments, by outcome and effect"),
    "banyan.answer.duration": ("s", "time to answer an action, from its way to its receipt"),
    "banyan.replays": ("{step}", "steps that were made again, as their states were lost"),
    "banyan.step.duration": ("s", "time of an optimizer step"),
    "banyan.step.reward": ("1", "mean reward of a batch"),
    "banyan.step.mismatch_kl": ("nat", "k3 estimate between sampling and training log-probs"),
    "banyan.step.clip_fraction": (
        "1",
        "share of trained path tokens whose gradient or weight a bound took",
    ),
    "banyan.step.ess": (
        "1",
        "effective share of sampled path tokens under weights training / sampling",
    ),
    "banyan.step.truncated_share": (
        "1",
        "share of sampled path tokens whose importance weight was beyond a bound",
    ),
    "banyan.step.rejected_share": ("1", "share of sampled path tokens that were rejected"),
    "banyan.step.ratio_share": (
        "1",
        "share of sampled path tokens by the ratio training / sampling",
    ),
    "banyan.step.start_kl": ("nat", "KL of the model that the run began with to the policy"),
    "banyan.steps.skipped": (
        "{step}",
        "optimizer steps that changed nothing, as a loss or a gradient was not finite",
    ),
    "banyan.step.entropy": ("nat", "mean entropy of the policy at sampled path tokens"),
    "banyan.step.zero_variance_share": (
        "1",
        "share of groups with two scored leaves or more whose rewards are all equal",
    ),
    "banyan.step.distinct_answers": ("1", "different answers of a group, per leaf"),
    "banyan.step.replay_share": (
        "1",
        "share of trained path tokens in trees that replay put into the batch",
    ),
    "banyan.step.staleness_share": (
        "1",
        "share of sampled segments by the optimizer steps that they are behind",
    ),
    "banyan.logger.lost": (
        "{record}",
        "records of metrics that a logger failed to take or had no room for",
    ),
    "banyan.weights.bytes": ("By", "bytes of weights published or loaded"),
    "banyan.weights.sent": (
        "By",
        "bytes of weights sent through an object store, whole or what changed",
    ),
    "banyan.weights.fallbacks": (
        "1",
        "policies fetched from the learner because the object store did not give them",
    ),
    "banyan.weights.unproven": (
        "1",
        "policies loaded of which nothing shows that the engine computes with them",
    ),
    "banyan.dead_letters": ("{message}", "messages given up"),
    "banyan.spans.sent": ("{span}", "spans that a receiver took"),
    "banyan.spans.failed": ("{span}", "spans that no receiver took in time"),
    "banyan.spans.forgotten": (
        "{span}",
        "spans of traces outside the share that were held back, and made room for later ones",
    ),
    "banyan.spans.dropped": ("{span}", "spans that the queue before the exporter had no room for"),
    "banyan.run.step": ("{step}", "optimizer steps of a run that is not over"),
    # Prometheus knows no sum of a histogram with values below 0, so that rewards need a level, too.
    "banyan.run.reward": ("1", "mean reward of the newest batch of a run"),
    "banyan.run.held_out_reward": (
        "1",
        "mean reward of the greedy answers to held-out rows, in a run's newest evaluation",
    ),
    "banyan.run.step_age": (
        "s",
        "time since a run that trains made its newest step, or began to train",
    ),
    "banyan.trees.held": ("{tree}", "trees of a run that grow, wait for scores, or for a batch"),
    "banyan.members": ("{node}", "rollout nodes of a run that are present"),
    "banyan.store.waiting": ("{row}", "rows that wait in the store, by queue"),
    "banyan.log.waiting": ("{message}", "messages that a consumer of the broker has not answered"),
    "banyan.log.bytes": ("By", "bytes that a stream of the broker holds"),
    "banyan.engine.running": ("{segment}", "segments that an engine decodes"),
    "banyan.engine.waiting": ("{segment}", "segments that wait for an engine"),
    "banyan.engine.kv_tokens": ("{token}", "tokens whose KV an engine holds"),
    "banyan.engine.policy_step": ("{step}", "policy step that an engine samples from"),
    "banyan.children.cpu.time": (
        "s",
        "processor time of the processes below this one: sandboxes, jails, workers",
    ),
    # OpenTelemetry's own names, from its conventions for processes
    "process.cpu.time": ("s", "processor time of this process, by mode"),
    "process.memory.usage": ("By", "resident memory of this process"),
    "process.uptime": ("s", "time since this process began"),
}

_OF_SCORES = {"ABSENT", "BUDGET", "EXCEPTION", "NOT_A_NUMBER", "TIMEOUT", "TOO_LARGE"}
_OF_TREES = {"REDUNDANT", "RETURNED", "STALE"}
_OF_RETURNS = {"drain", "policy", "UNABLE", "UNUSABLE"}
REASONS = frozenset({*map(str, Reason), *_OF_SCORES, *_OF_TREES, *_OF_RETURNS})
"""Kinds of reasons why something has no score, was refused or was dropped: their first words. What
follows may quote an answer, and nodes of others word it as they like."""

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0),
)
KLS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "banyan.ingest.duration": SECONDS,
    "banyan.score.duration": SECONDS,
    "banyan.answer.duration": SECONDS,
    "banyan.step.duration": SECONDS,
    "banyan.engine.occupancy": tuple(float(2**power) for power in range(11)),
    # Rewards of users may have any scale: halves of tens around those that are most common, 0 to 1.
    "banyan.step.reward": (-10.0, -5.0, -1.0, -0.5, -0.1, *SHARES, 2.0, 5.0, 10.0, 50.0, 100.0),
    "banyan.step.mismatch_kl": KLS,
    "banyan.step.start_kl": KLS,
    "banyan.step.entropy": (
        0.0,
        0.001,
        0.01,
        0.03,
        0.1,
        0.2,
        0.3,
        0.5,
        0.75,
        1.0,
        1.5,
        2.0,
        4.0,
        8.0,
    ),
    "banyan.step.clip_fraction": SHARES,
    "banyan.step.ess": SHARES,
    "banyan.step.truncated_share": SHARES,
    "banyan.step.rejected_share": SHARES,
    "banyan.step.ratio_share": SHARES,
    "banyan.step.zero_variance_share": SHARES,
    "banyan.step.distinct_answers": SHARES,
    "banyan.step.replay_share": SHARES,
    "banyan.step.staleness_share": SHARES,
}
"""Upper bounds of the buckets of each histogram, in its unit."""
