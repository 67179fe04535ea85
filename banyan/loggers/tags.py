"""Names of metrics as `group/name`, by which W&B, TensorBoard and MLflow make panels. Pure.

The store, JSON lines and docs/metrics.md have the plain names; a tag is made of one here alone.
"""

from collections.abc import Mapping

GROUPED, PLAIN = "grouped", "plain"
CHOICES = (GROUPED, PLAIN)
OTHERS = "other"  # group of names that no rule covers

_RENAMED: Mapping[str, str] = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "reward_group_std": "reward/group_std",
}

_NAMES: Mapping[str, tuple[str, ...]] = {
    "reward": (
        "zero_variance_share",
        "all_right_share",
        "all_wrong_share",
        "advantage_max",
        "malformed_share",
        "unscorable_share",
        "unscorable_leaves",
        "parts_left_out",
    ),
    "environment": (
        "turns_per_path",
        "calls_malformed_share",
        "calls_failed_share",
        "answers_cut_share",
        "turns_used_up_share",
        "unanswered_share",
    ),
    "rollout": (
        "distinct_answers",
        "duplicate_share",
        "completion_tokens",
        "completion_tokens_median",
        "completion_tokens_p99",
        "length_limited_share",
        "forks",
        "ends_discarded",
        "repairs",
        "repairs_taken",
        "kv_tokens",
        "engine_occupancy",
    ),
    "policy": (
        "entropy",
        "mismatch_kl",
        "ess",
        "path_ess",
        "clip_fraction",
        "foreign_fraction",
        "truncated_share",
        "rejected_share",
        "importance_mean",
        "start_kl",
        "reference_kl",
    ),
    "optimise": (
        "loss",
        "grad_norm",
        "learning_rate",
        "relative_rate",
        "applied",
        "not_finite",
        "optimizer_steps",
        "pairs_right",
        "pairs_margin",
    ),
    "batch": (
        "groups",
        "groups_skipped",
        "leaves",
        "stale_leaves",
        "replay_share",
        "rows",
        "unique_tokens",
        "path_tokens",
        "packed_tokens",
        "repeated_tokens",
        "trained_path_tokens",
    ),
    "time": ("prepare_seconds", "train_seconds", "publish_seconds", "weights_seconds"),
}

_PREFIXES: Mapping[str, str] = {  # of names, the prefix included → group
    "ratio_": "policy",
    "staleness_": "batch",
    "head_": "head",
    "weights_": "weights",
}

_GROUP_OF = {name: group for group, names in _NAMES.items() for name in names}


def tag(name: str) -> str:
    """Return the tag of a metric: `reward` → `reward/mean`, `eval_greedy_right` → `eval/…`.

    Names with a group of their own (`score/SCORER`, `part/SCORER/PART`) stay. No two names have one
    tag. Names that no rule knows are in the group `other`.
    """
    if "/" in name:
        return name
    if name in _RENAMED:
        return _RENAMED[name]
    if name in _GROUP_OF:
        return f"{_GROUP_OF[name]}/{name}"
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    groups = (group for prefix, group in _PREFIXES.items() if name.startswith(prefix))
    return f"{next(groups, OTHERS)}/{name}"


def named(metrics: Mapping[str, float], choice: str) -> dict[str, float]:
    """Return metrics by tag for the choice `grouped`, else by plain name."""
    if choice != GROUPED:
        return dict(metrics)
    return {tag(name): value for name, value in metrics.items()}
